#!/usr/bin/python3
import fnmatch, os, sys
d = os.path.join(os.path.dirname(sys.argv[0]), "..", "..")
tool = os.path.basename(sys.argv[0])
def read(n): return dict(l.split() for l in open(d + "/" + n)) if os.path.exists(d + "/" + n) else {}
db, pool = read("db"), read("pool")
if tool == "dpkg-query":
    if os.path.exists(d + "/broken"): sys.exit("dpkg-query: error: the database is locked")
    for n, v in db.items():
        print(n, "amd64", "config-files" if v == "-" else "installed", v, "mail-agent (= 1)" if n == "postfix" else "", sep="\t")
    sys.exit()
if tool == "dpkg" and sys.argv[1] == "--get-selections":
    name = sys.argv[2]
    word = read("selections").get(name, "install" if name in db else None)
    if word: print(name, word, sep="\t")
    else: print("dpkg: no packages found matching " + name, file=sys.stderr)
    sys.exit()
if tool == "dpkg" and sys.argv[1] == "--set-selections":
    line = sys.stdin.read()
    with open(d + "/log", "a") as f: f.write("select " + line)
    open(d + "/selections", "a").write(line)
    sys.exit()
if tool == "dpkg":
    a, op, b = sys.argv[2:]
    sys.exit(0 if {"ge": a >= b, "lt": a < b}[op] else 1)
if tool == "dpkg-deb": print("Package: hello\nVersion: 3.0"); sys.exit()
if tool == "apt-cache":
    print("\n".join(n for n in pool if n.startswith(sys.argv[2]))); sys.exit()
args, simulate, opts, words = sys.argv[1:], False, set(), []
while args:
    a = args.pop(0)
    if a == "-s": simulate = True
    elif a in ("-o", "-t"): args.pop(0)
    elif a.startswith("-"): opts.add(a)
    else: words.append(a)
verb, names = words[0], words[1:]
if not simulate:
    with open(d + "/log", "a") as f: f.write(" ".join(words) + "\n")
if verb == "update":
    if os.path.exists(d + "/offline"): sys.exit("E: Failed to fetch http://mirror/InRelease")
    if os.path.exists(d + "/newpool"): os.rename(d + "/newpool", d + "/pool")
    sys.exit()
if verb in ("upgrade", "dist-upgrade"): names = [n for n in db if n in pool and pool[n] != db[n]]; verb = "install"
if verb == "autoremove": verb, names = "remove", [n for n in db if n.startswith("old")]
if verb == "install" and "hello" in db and names == [] and "--fix-broken" in opts: sys.exit()
for n in names:
    name, _, version = n.partition("=")
    if verb == "install":
        if name.startswith("/"): name, pool["hello"] = "hello", "3.0"
        if name not in pool: sys.exit("Reading...\nE: Unable to locate package " + name)
        if version and not fnmatch.fnmatch(pool[name], version): sys.exit("E: Version '%s' for '%s' was not found" % (version, name))
        if db.get(name) == pool[name]: continue
        old = "" if db.get(name, "-") == "-" else "[%s] " % db[name]
        if simulate: print("Inst %s %s(%s Debian:12/stable [amd64])" % (name, old, pool[name])); print("Conf %s" % name)
        db[name] = pool[name]
    else:
        if simulate: print(("Purg " if "--purge" in opts else "Remv ") + name + " [%s]" % db[name])
        if "--purge" in opts: del db[name]
        else: db[name] = "-"
if not simulate:
    print("Setting up " + " ".join(names))
    open(d + "/db", "w").write("".join("%s %s\n" % i for i in db.items()))
