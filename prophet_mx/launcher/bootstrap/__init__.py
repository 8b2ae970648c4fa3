"""The folder that ``prophet-mx launch --schedule`` puts on ``PYTHONPATH``: Python runs its ``sitecustomize`` at start."""
