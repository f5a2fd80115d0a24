if(TARGET deepinfer)
  di_pytest(test_bench tests/client/test_bench.py LABELS client TIMEOUT 600)
endif()
