# The cases are compiled once per instruction set, with the flags of src/kernels/cpu.
set(simd_flags_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi
                      -mavx512bf16 -mavx512vnni)
set(simd_flags_avx2 -mavx2 -mfma -mf16c)
foreach(isa avx512 avx2)
  string(TOUPPER CPU_${isa} define)
  add_library(simd_cases_${isa} OBJECT ${CMAKE_CURRENT_LIST_DIR}/simd_cases.c)
  target_compile_definitions(simd_cases_${isa} PRIVATE ${define}=1)
  target_compile_options(simd_cases_${isa} PRIVATE ${simd_flags_${isa}})
  target_include_directories(simd_cases_${isa} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  di_paths(simd_cases_${isa} kernels base formats)
endforeach()
di_test(simd_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/simd_test.c
        $<TARGET_OBJECTS:simd_cases_avx512> $<TARGET_OBJECTS:simd_cases_avx2>
        USES base formats LABELS kernels)

# Includes a header that is compiled per instruction set; nothing of it runs before the check.
add_library(attention_dots_isa OBJECT ${CMAKE_CURRENT_LIST_DIR}/attention_dots_isa.c)
target_compile_definitions(attention_dots_isa PRIVATE CPU_AVX512=1)
target_compile_options(attention_dots_isa PRIVATE ${simd_flags_avx512})
target_include_directories(attention_dots_isa PRIVATE ${PROJECT_SOURCE_DIR}/tests)
di_paths(attention_dots_isa kernels base formats tensor)
di_test(test_attention_dots SOURCES kernels/attention_dots_test.c kernels/cases.c
        kernels/op_inst.c kernels/op_rows.c kernels/op_seq.c $<TARGET_OBJECTS:attention_dots_isa>
        USES base formats tensor kernels LINK m LABELS kernels)
