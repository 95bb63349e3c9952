"""For every test: a shell that starts this in the background leaves Ctrl-C ignored, and children inherit that."""

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
