if(TARGET deepinfer)
  di_pytest(test_names tests/client/test_names.py LABELS client)
endif()
