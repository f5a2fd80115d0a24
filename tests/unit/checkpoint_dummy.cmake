di_test(test_checkpoint_dummy SOURCES unit/checkpoint_dummy_test.c
        USES base formats checkpoint LINK m LABELS unit)
