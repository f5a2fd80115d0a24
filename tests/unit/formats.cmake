foreach(part scalar quant)
  di_test(test_formats_${part} SOURCES unit/formats_${part}_test.c USES base formats LABELS unit)
endforeach()
di_test(test_tensor_kv_view SOURCES unit/tensor_kv_view_test.c USES base formats tensor LABELS unit)
