"""The wire: this process's connections and what drains from them."""
