"""``backends.models.fetch``, which waits less than it does."""

import os
import sys

from backends import http_download
from backends.models import fetch, hugging_face

http_download.RETRY_S = 0.02
http_download.TIMEOUT_S = float(os.environ.get("PATIENCE_S", http_download.TIMEOUT_S))
vars(hugging_face)["TIMEOUT_S"] = http_download.TIMEOUT_S

if __name__ == "__main__":
    sys.exit(fetch.main(*sys.argv[1:]))
