if(TARGET deepinfer)
  di_pytest(test_dummy tests/client/test_dummy.py LABELS client TIMEOUT 300)
endif()
