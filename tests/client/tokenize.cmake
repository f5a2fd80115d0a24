if(TARGET deepinfer)
  di_pytest(test_client_tokenize tests/client/test_tokenize.py LABELS client)
endif()
