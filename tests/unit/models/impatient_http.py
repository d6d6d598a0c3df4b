"""``backends.http_download``, which waits less and needs no room to spare."""

import sys

from backends import http_download

http_download.RETRY_S = 0.02
http_download.TIMEOUT_S = 0.5
http_download.SPARE_BYTES = 0

if __name__ == "__main__":
    sys.exit(http_download.main(*sys.argv[1:]))
