#!/usr/bin/python3
import os, sys
d = os.path.join(os.path.dirname(sys.argv[0]), "..", "..")
name = os.path.basename(sys.argv[0])
with open(d + "/log", "a") as f: f.write(" ".join([name] + sys.argv[1:]) + "\n")
def read(n): return [l.rstrip("\n").split(":") for l in open(d + "/etc/" + n)]
def write(n, rows): open(d + "/etc/" + n, "w").write("".join(":".join(r) + "\n" for r in rows))
passwd, group, shadow = read("passwd"), read("group"), read("shadow")
if name == "chpasswd":
    user, hash = sys.stdin.read().strip().split(":", 1)
    for row in shadow:
        if row[0] == user: row[1] = hash
    write("shadow", shadow); sys.exit()
args, opts, flags = sys.argv[1:], {}, set()
while len(args) > 1 or (args and args[0].startswith("-")):
    a = args.pop(0)
    if a in ("-u", "-g", "-G", "-c", "-d", "-s", "-e", "-f", "-K", "-k", "-m", "-M", "-W") and not (a in ("-m", "-M", "-f") and name in ("useradd", "usermod", "groupdel", "userdel") and not (a == "-f" and name in ("useradd", "usermod"))): opts[a] = args.pop(0)
    else: flags.add(a)
who = args[0]
if name == "groupadd": group.append([who, "x", opts.get("-g", "998" if "-r" in flags else "1500"), ""])
if name == "groupmod":
    for row in group:
        if row[0] == who: row[2] = opts["-g"]
if name == "groupdel": group = [r for r in group if r[0] != who]
if name == "useradd":
    uid = opts.get("-u", "1500")
    if "-g" not in opts and "-N" not in flags: group.append([who, "x", uid, ""])
    home = opts.get("-d", "/home/" + who)
    passwd.append([who, "x", uid, opts.get("-g", uid), opts.get("-c", ""), home, opts.get("-s", "/bin/sh")])
    shadow.append([who, "!", "20000", "0", "99999", "7", "", "", ""])
    if "-m" in flags: os.makedirs(d + home)
if name == "usermod":
    for row in passwd:
        if row[0] == who:
            for o, i in (("-u", 2), ("-g", 3), ("-c", 4), ("-d", 5), ("-s", 6)): row[i] = opts.get(o, row[i])
if name in ("useradd", "usermod"):
    if "-G" in opts:
        for row in group:
            members = [m for m in row[3].split(",") if m and m != who]
            if row[0] in opts["-G"].split(","): members.append(who)
            row[3] = ",".join(members)
    for row in shadow:
        if row[0] == who:
            if "-L" in flags: row[1] = "!" + row[1]
            if "-U" in flags: row[1] = row[1].lstrip("!")
            if "-e" in opts:
                import datetime
                row[7] = str((datetime.date.fromisoformat(opts["-e"]) - datetime.date(1970, 1, 1)).days) if opts["-e"] else ""
            row[6] = opts.get("-f", row[6])
if name == "chage":
    for row in shadow:
        if row[0] == who: row[3], row[4], row[5] = opts.get("-m", row[3]), opts.get("-M", row[4]), opts.get("-W", row[5])
if name == "userdel":
    passwd = [r for r in passwd if r[0] != who]; shadow = [r for r in shadow if r[0] != who]
    if who == "ann" and "-r" in flags: sys.exit(12 if (write("passwd", passwd) or write("shadow", shadow)) is None else 0)
write("passwd", passwd); write("group", group); write("shadow", shadow)
