#!/bin/bash
# Gets the ISA-L of Debian 13 (2.31.1), which multiplies with GFNI, for comparisons: `tools/isal.sh
# [FOLDER]`. Prints the folder of the library, for ISAL. That of Debian 12 (2.30.0) has no GFNI.
set -euo pipefail

folder=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/isal}")
library=$folder/usr/lib/$(uname -m)-linux-gnu
test -e "$library/libisal.so.2" || "$(dirname "$0")/trixie.sh" "$folder" libisal2 >&2
echo "$library"
