__import__("setuptools").setup()  # all metadata stand in pyproject.toml
