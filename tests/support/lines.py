"""What prophet_mx logs during a test."""

import logging


class Lines(logging.Handler):
    """Keeps the messages of prophet_mx while it is open."""

    def __init__(self, level=logging.INFO):
        super().__init__()
        self.logger, self.wanted = logging.getLogger("prophet_mx"), level
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())

    def __enter__(self):
        self.before = self.logger.level
        self.logger.addHandler(self)
        self.logger.setLevel(self.wanted)
        return self

    def __exit__(self, *_):
        self.logger.removeHandler(self)
        self.logger.setLevel(self.before)
