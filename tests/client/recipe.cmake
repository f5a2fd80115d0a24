if(TARGET deepinfer)
  di_pytest(test_client_recipe tests/client/test_recipe.py LABELS client)
endif()
