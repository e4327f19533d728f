"""What every test relies on, wherever the tests are started from."""

import signal

# A shell starts background jobs, and nohup its command, with these ignored, and every child inherits that: the
# programs under test must meet signals as they do in a user's terminal.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
