# Runs the bootstrap as another user through sudo.
# Arguments: bootstrap, tag, list, anew, user, p when a password will be sent, words for the helper.
echo "$2 login $(id -u)";
if [ "$(id -un)" = "$5" ]; then exec sh -c "$1" gpufleet "$2" "$3" "$4" "$7"; fi;
PATH=${PATH:-/usr/bin}:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin;
LC_ALL=C;
export PATH LC_ALL;
command -v sudo >/dev/null 2>&1 || { echo "$2 fail nosudo"; exit 1; };
case $6 in
  p) exec sudo -k -S -H -p "$2-password:" -u "$5" -- sh -c "$1" gpufleet "$2" "$3" "$4" "$7";;
esac;
exec sudo -n -H -u "$5" -- sh -c "$1" gpufleet "$2" "$3" "$4" "$7";
