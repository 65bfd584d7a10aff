# Finds the node file, or asks for it on stdin, and runs it. Runs as the user that the helper will be.
# Arguments: tag, list of ARCH=SHA256=SIZE=PACKED, 1 to send the file anew, words for the helper. Sizes are in bytes, the
# second one is that of the file as gzip packs it.
# Lines are joined by spaces, so that any login shell hands them on: no quote, no backslash, no exclamation mark.
umask 077;
t=$1;
y=$4;
p=$PWD;
PATH=${PATH:-/usr/bin}:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin;
export PATH;
m=$(uname -m);
h=;
for e in $2; do
  case $e in "$m"=*) e=${e#*=}; h=${e%%=*}; e=${e#*=}; n=${e%=*}; b=${e#*=};; esac;
done;
case $h in "") echo "$t fail arch $m"; exit 1;; esac;

# Goes into a folder and judges it, everything above it, and the node file in it. Physical paths, so no link can lie.
look() {
  z=;
  w=missing; [ -d "$1" ] || return 1;
  w=link; [ -h "$1" ] && return 1;
  w=closed; cd -P "$1" 2>/dev/null || return 1;
  w=foreign; [ -O . ] || return 1;
  q=$PWD; u=.; l="/ .";
  while q=${q%/*}; [ -n "$q" ]; do u=$u/..; l="$l $u"; done;
  if [ -f "$h" ]; then
    w=link; [ -h "$h" ] && return 1;
    w=foreign; [ -O "$h" ] || return 1;
    l="$l $h";
  fi;
  set -- $(LC_ALL=C ls -ldn $l 2>/dev/null);
  w=unreadable; [ $# -ge 18 ] || return 1;
  o=; me=;
  while [ $# -ge 9 ]; do
    case $9 in
      .) me=$3; o="$o $3";;
      "$h") z=$5;;
      *) o="$o $3";;
    esac;
    case $1 in
      d????????[tT]*) ;;
      ?????w*|????????w*) w=open-to-others; return 1;;
      d*|-*) ;;
      *) w=strange; return 1;;
    esac;
    shift 9;
  done;
  w=foreign-parent;
  for e in $o; do case $e in 0|"$me") ;; *) return 1;; esac; done;
  w=;
};

# The SHA-256 of a file; nothing where no program of the node tells it.
digest() {
  g=;
  if command -v sha256sum >/dev/null 2>&1; then g=$(sha256sum <"$1");
  elif command -v openssl >/dev/null 2>&1; then g=$(openssl dgst -sha256 -r <"$1");
  elif command -v shasum >/dev/null 2>&1; then g=$(shasum -a 256 <"$1"); fi;
  g=${g%% *};
};

# What changes whenever the file does: inode, size, owner, mode, and the times that the kernel keeps, to the nanosecond.
# Nothing where the node has no stat that tells them.
stamp() {
  k=$(LC_ALL=C TZ=UTC0 stat -c "%d %i %s %u %a %y %z" "$1" 2>/dev/null);
};

# Whether the file is as it was when its digest was right. Only its owner can write here, so the record is not forged.
seen() {
  stamp "$h";
  case $k in "") return 1;; esac;
  [ -h "$h.seen" ] && return 1;
  [ -f "$h.seen" ] && [ -O "$h.seen" ] || return 1;
  j=;
  read -r j <"$h.seen" 2>/dev/null;
  case $j in "$k") return 0;; esac;
  return 1;
};

# Keeps what the file looks like, now that its digest was right.
keep() {
  stamp "$h";
  case $k in "") return 0;; esac;
  rm -f "$h.seen";
  ( echo "$k" >"$h.seen" ) 2>/dev/null;
};

run() {
  x=$PWD/$h;
  cd / ;
  umask 022;
  unset LD_PRELOAD LD_LIBRARY_PATH;
  case $y in "") exec "$x" serve $v;; esac;
  exec "$x" serve $v $y --folder "$p";
};

i=$(id -u);
v=;
r=;
case $i in 0) r=1;; esac;
set -- "$3" "${XDG_CACHE_HOME:+$XDG_CACHE_HOME/gpufleet}" "${HOME:+$HOME/.cache/gpufleet}" "${r:+/var/lib/gpufleet/node}" "${XDG_RUNTIME_DIR:-/run/user/$i}/gpufleet" "${r:+/run/gpufleet}";
f=$1;
shift;
case $f in 0)
  for d do
    case $d in /*) ;; *) continue;; esac;
    look "$d" || continue;
    case $z in "$n") ;; *) continue;; esac;
    seen || {
      digest "$h";
      case $g in "$h") ;; *) continue;; esac;
      keep;
    };
    v="--verified $h";
    echo "$t run";
    run;
  done;;
esac;

# The file is not there: the first folder that takes it and lets it run gets it.
s=;
c=;
for d do
  case $d in "") continue;; /*) ;; *) c="$c $d:not-absolute"; continue;; esac;
  mkdir -p "$d" 2>/dev/null || { c="$c $d:cannot-be-made"; continue; };
  look "$d" || { c="$c $d:$w"; continue; };
  q=.new.$t;
  a=$(df -Pk . 2>/dev/null | tail -n 1 | { read -r e e e e x; echo "$e"; });
  case $a in
    ""|*[a-z%-]*) ;;
    *) [ "$a" -gt $((n / 1024 + 256)) ] || { c="$c $d:full"; continue; };;
  esac;
  ( : >"$q" ) 2>/dev/null || { c="$c $d:not-writable"; continue; };
  case $s in
    "")
      if command -v gzip >/dev/null 2>&1; then
        echo "$t need $m gzip";
        head -c "$b" | gzip -dc >"$q" 2>/dev/null;
      else
        echo "$t need $m plain";
        head -c "$n" >"$q" 2>/dev/null;
      fi;;
    *)
      cp "$s" "$q" 2>/dev/null; rm -f "$s"; s=;;
  esac;
  case $(wc -c <"$q") in
    *[0-9]*) [ "$(wc -c <"$q")" -eq "$n" ] || { rm -f "$q"; echo "$t fail short $d"; exit 1; };;
    *) echo "$t fail short $d"; exit 1;;
  esac;
  digest "$q";
  case $g in "$h") v="--verified $h";; "") ;; *) rm -f "$q"; echo "$t fail digest $d"; exit 1;; esac;
  chmod 700 "$q";
  "./$q" --version </dev/null >/dev/null 2>&1;
  case $? in
    126|127) c="$c $d:noexec"; s=$PWD/$q; continue;;
  esac;
  mv -f "$q" "$h" || { rm -f "$q"; echo "$t fail short $d"; exit 1; };
  case $v in "") ;; *) keep;; esac;
  k=0;
  for e in $(ls -t); do
    case ${#e} in 64) k=$((k + 1)); [ $k -le 2 ] || rm -f "./$e" "./$e.seen";; esac;
  done;
  for e in *.seen; do [ -f "${e%.seen}" ] || rm -f "./$e"; done;
  find . -name ".new.*" -mmin +60 -exec rm -f {} + 2>/dev/null;
  run;
done;
case $s in "") ;; *) rm -f "$s";; esac;
echo "$t fail place$c";
exit 1;
