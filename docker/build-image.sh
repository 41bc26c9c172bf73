#!/usr/bin/env bash
# Build an image with no image registry, on a Debian root with Java and Python.
#
#   docker/build-image.sh PYTHON [TAG]
#
# TAG is floodmark/kafka:VERSION (default), floodmark/floodmark:VERSION, floodmark/spark:VERSION, or floodmark/base:bookworm,
# which the others are built on.  PYTHON has Floodmark installed; it fetches Kafka's jars, and keeps them.  Needs root and
# debootstrap.
set -euo pipefail
python=$1
tag=${2:-floodmark/kafka:4.4.0}
here=$(cd "$(dirname "$0")" && pwd)
base=floodmark/base:bookworm
exec 9< "$0"
flock 9 # one at a time: all share the base
old=$(docker image ls --quiet "$tag")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! docker image inspect "$base" > /dev/null 2>&1; then
    # The Debian mirror is whatever this machine's own apt uses, and the base trusts whom this machine trusts.
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep debian | grep -v security | head -1)
    debootstrap --variant=minbase --include=ca-certificates,openjdk-17-jre-headless,python3-venv \
        bookworm "$work/image" "$mirror" > "$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
    (cd "$work/image" && rm -rf var/cache/apt var/lib/apt/lists usr/share/doc usr/share/man)
    cp -rL --remove-destination /etc/ssl/certs "$work/image/etc/ssl/"
    tar -C "$work/image" -c . | docker import - "$base"
fi
case $tag in
"$base") ;;
*/kafka:*)
    mkdir -p "$work/kafka/libs"
    "$python" -c 'from floodmark.producers.embedded.broker import kafka_jars
print(*kafka_jars(), sep="\n")' | xargs -I{} cp {} "$work/kafka/libs/"
    cp "$here"/kafka/* "$work/kafka/"
    printf 'FROM %s\nCOPY . /opt/kafka\nENTRYPOINT ["sh", "/opt/kafka/start.sh"]\n' "$base" > "$work/Dockerfile"
    docker build -f "$work/Dockerfile" -t "$tag" "$work/kafka"
    ;;
*)
    target=${tag#*/}
    docker build --network host --build-arg BASE="$base" --target "${target%:*}" -f "$here/floodmark/Dockerfile" \
        -t "$tag" "$here/.."
    ;;
esac
[ -z "$old" ] || [ "$old" = "$(docker image ls --quiet "$tag")" ] || docker image rm "$old" > /dev/null 2>&1 || true # in use
