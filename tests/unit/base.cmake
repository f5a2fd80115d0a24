foreach(part memory pool file utf8 json rng)
  di_test(test_base_${part} SOURCES unit/base_${part}_test.c USES base LABELS unit)
endforeach()
target_link_libraries(test_base_json PRIVATE m)
