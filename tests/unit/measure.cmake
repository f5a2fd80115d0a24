# What the charts of deepinfer bench are made of.
di_test(test_measure SOURCES unit/measure_test.c USES base cli LINK m LABELS unit)
