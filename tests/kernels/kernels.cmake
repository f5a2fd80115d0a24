set(op_case_sources kernels/cases.c kernels/op_inst.c kernels/op_rows.c kernels/op_seq.c)
di_test(test_kernel_backends SOURCES kernels/backend_test.c ${op_case_sources}
        USES base formats tensor kernels LINK m LABELS kernels TIMEOUT 1200)
add_test(NAME test_kernel_backends_real COMMAND test_kernel_backends real)
set_tests_properties(test_kernel_backends_real PROPERTIES LABELS "kernels;slow"
                     SKIP_RETURN_CODE 77 TIMEOUT 600)
di_test(test_kernel_formulas SOURCES kernels/formula_test.c USES base formats tensor kernels
        LINK m LABELS kernels)
di_test(test_kernel_dispatch SOURCES kernels/dispatch_test.c USES base formats tensor kernels
        LABELS kernels)
di_test(test_kernel_state SOURCES kernels/state_test.c USES base formats tensor kernels
        LINK m LABELS kernels)
di_test(test_kernel_sample SOURCES kernels/sample_test.c USES base formats tensor kernels
        LINK m LABELS kernels)
