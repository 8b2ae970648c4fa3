#!/bin/sh
# Shows what prophet_mx says of a job, without running one: a prediction, and the report and timeline of two jobs whose traces are here.
#
#   sh look.sh [FOLDER]          writes FOLDER/report.html, by default into the current folder
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command=${COMMAND:-prophet-mx}
folder=${1:-.}

echo '1. Would scheduling help to train BERT on eight machines?'
$command predict --model bert --compute 250ms --bandwidth 10Gbit --workers 8 --no-range

echo
echo '2. What did it change for a small job on slow links? Its traces, with the order of plain dist_sync and scheduled:'
$command report "$here"/traces/fifo-*.json "$here"/traces/prophet-*.json -o "$folder/report.html"

echo
echo "3. Open $folder/report.html in a browser. For every single message, open $here/traces/prophet-0.json in https://ui.perfetto.dev"
