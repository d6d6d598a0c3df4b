"""``backends.models.download_process``, which waits less than it does."""

import os
import sys

from backends import http_download
from backends.models import download_process, hugging_face

http_download.RETRY_S = 0.02
http_download.TIMEOUT_S = float(os.environ.get("PATIENCE_S", http_download.TIMEOUT_S))
vars(hugging_face)["TIMEOUT_S"] = http_download.TIMEOUT_S

if __name__ == "__main__":
    sys.exit(download_process.main(*sys.argv[1:]))
