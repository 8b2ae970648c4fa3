"""The wire: this process's connections and what drains from them. Imports the modules at the top alone."""
