if(TARGET deepinfer)
  di_pytest(test_server tests/client/test_server.py LABELS client TIMEOUT 300)
endif()
