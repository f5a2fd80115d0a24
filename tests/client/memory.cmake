if(TARGET deepinfer)
  di_pytest(test_memory tests/client/test_memory.py LABELS client TIMEOUT 600)
endif()
