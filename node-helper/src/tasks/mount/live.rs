//! What the kernel says of a mount, compared with what is declared. Pure.
//!
//! A false difference is worse than a missed one: it remounts at each run, or asks for a reboot that changes nothing. So only
//! options are compared whose declared and shown forms are certain to agree where they mean the same, and which no other
//! mount of the file system decides. All others differ in nothing.

use super::fstab::Mounted;

/// Options of the mount itself, by the word that takes each away. Source: kernel, fs/proc_namespace.c.
const OF_MOUNT: [(&str, &str); 7] = [
    ("ro", "rw"),
    ("nosuid", "suid"),
    ("nodev", "dev"),
    ("noexec", "exec"),
    ("noatime", "atime"),
    ("nodiratime", "diratime"),
    ("nosymfollow", "symfollow"),
];
/// Options of the file system that any type may be remounted with.
const OF_FILE_SYSTEM: [&str; 6] = ["sync", "async", "dirsync", "lazytime", "nolazytime", "defaults"];
/// Other words for access times, which overrule `noatime` in ways that depend on the versions of kernel and mount.
const ACCESS_TIMES: [&str; 4] = ["relatime", "norelatime", "strictatime", "nostrictatime"];
/// Words that imply `nosuid,nodev` and partly `noexec`, until a later one says otherwise. Source: mount(8).
const WITH_NOEXEC: [&str; 2] = ["user", "users"];
const WITHOUT_NOEXEC: [&str; 2] = ["owner", "group"];
/// Words that the kernel never sees. Source: mount(8), systemd.mount(5).
const OF_PROGRAMS: [&str; 8] =
    ["_netdev", "nofail", "auto", "noauto", "nouser", "nogroup", "comment", "uhelper"];
/// Options that only a new mount changes. Sources: kernel, mm/shmem.c and fs/xfs/xfs_super.c (their `reconfigure` leaves
/// these), admin-guide/ext4 (`data=`); btrfs(5).
const FIXED: [&str; 7] = ["mode", "logbufs", "logbsize", "allocsize", "data", "subvol", "subvolid"];

/// A declared option that does not count now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    pub option: String,
    /// Whether `mount -o remount` leaves it as it is.
    pub fixed: bool,
}

fn of_nfs(fstype: &str) -> bool {
    matches!(fstype, "nfs" | "nfs4")
}

fn of_smb(fstype: &str) -> bool {
    matches!(fstype, "cifs" | "smb3")
}

/// Whether a remount changes nothing but flags, and may be refused where it gets anything else. Sources: kernel, fs/nfs/super.c
/// (`nfs_compare_remount_data`), fs/hugetlbfs/inode.c (has no remount), fs/overlayfs/params.c.
fn takes_flags_only(fstype: &str) -> bool {
    of_nfs(fstype) || matches!(fstype, "hugetlbfs" | "overlay")
}

fn key_of(option: &str) -> &str {
    option.split('=').next().unwrap_or(option)
}

fn is_bind(opts: &str) -> bool {
    opts.split(',').any(|option| matches!(option, "bind" | "rbind"))
}

/// Whether another type than declared is mounted. A type that a program of its own serves has another name in the
/// kernel, and a bind mount has that of its source.
pub fn other_type(mounted: &Mounted, declared: &str, opts: &str) -> bool {
    let live = mounted.fstype.as_str();
    let same = |names: [&str; 2]| names.contains(&live) && names.contains(&declared);
    let unknown = is_bind(opts) || matches!(declared, "" | "auto" | "none") || declared.contains(',');
    let served = ["fuse", "autofs"].iter().any(|name| live.starts_with(name)) || declared.starts_with("fuse");
    // ext4 serves the older ones; msdos is a vfat with short names.
    let known = [
        ["nfs", "nfs4"],
        ["cifs", "smb3"],
        ["ext3", "ext4"],
        ["ext2", "ext4"],
        ["vfat", "msdos"],
        ["ntfs", "ntfs3"],
    ];
    live != declared && !live.is_empty() && !unknown && !served && !known.into_iter().any(same)
}

/// Returns a number with a binary suffix in bytes.
fn bytes(value: &str) -> Option<u128> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u128 = digits.parse().ok()?;
    let shift = match value.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// Whether the values of an option are compared, with those that the kernel shows. Sources: kernel, fs/nfs/super.c,
/// fs/smb/client/cifsfs.c, mm/shmem.c, fs/hugetlbfs/inode.c, fs/ext4/super.c, fs/xfs/xfs_super.c and fs/btrfs/super.c.
fn is_compared(fstype: &str, key: &str) -> bool {
    let keys: &[&str] = match fstype {
        // Not what the server or an earlier mount of it has a say in, such as `rsize` and `timeo`.
        "nfs" | "nfs4" => &["vers", "proto", "nconnect", "sec", "lookupcache"],
        "cifs" | "smb3" => &["vers"],
        "tmpfs" => &["size", "nr_inodes", "mode", "huge"],
        "hugetlbfs" => &["pagesize", "size", "nr_inodes"],
        "ext3" | "ext4" => &["data"],
        "xfs" => &["logbufs", "logbsize"],
        "btrfs" => &["subvol"],
        _ => &[],
    };
    keys.contains(&key)
}

/// Whether both are of these words, and not the same one.
fn are_other(words: &[&str], live: &str, declared: &str) -> bool {
    live != declared && words.contains(&live) && words.contains(&declared)
}

/// Whether a shown value is certainly not the declared one. `page` is the size of the file system's huge pages in bytes.
fn differs(key: &str, live: &str, declared: &str, page: Option<u128>) -> bool {
    let numbers = |test: fn(u128, u128) -> bool| matches!((bytes(live), bytes(declared)), (Some(live), Some(declared)) if test(live, declared));
    let octal = |value: &str| u32::from_str_radix(value, 8).ok();
    match key {
        _ if live == declared => false,
        "mode" => octal(live).zip(octal(declared)).is_some_and(|(live, declared)| live != declared),
        "size" => match (bytes(live), bytes(declared), page) {
            (Some(live), Some(declared), Some(page)) => live.checked_div(page) != declared.checked_div(page),
            // Rounded to pages, of up to 64 KiB.
            _ => numbers(|live, declared| live.abs_diff(declared) >= 1 << 16),
        },
        "vers" => {
            let wanted = match declared {
                "3.11" => "3.1.1",
                "3.0.2" => "3.02",
                other => other,
            };
            let is_number = wanted.starts_with(|c: char| c.is_ascii_digit());
            // A part of the version leaves the rest to the server.
            let within =
                live.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            is_number && !within
        }
        "proto" => {
            let plain = |value: &str| value.trim_end_matches('6').to_owned();
            are_other(&["tcp", "udp", "rdma"], &plain(live), &plain(declared))
        }
        "sec" => {
            let wanted = if declared == "none" { "null" } else { declared };
            are_other(&["null", "sys", "krb5", "krb5i", "krb5p"], live, wanted)
        }
        "lookupcache" => {
            let wanted = if declared == "positive" { "pos" } else { declared };
            are_other(&["all", "none", "pos"], live, wanted)
        }
        "huge" => are_other(&["always", "within_size", "advise", "never"], live, declared),
        "data" => are_other(&["journal", "ordered", "writeback"], live, declared),
        "subvol" => live.trim_matches('/') != declared.trim_matches('/'),
        _ => numbers(|live, declared| live != declared),
    }
}

/// Whether the flag that a word declares does not count.
fn lacks_flag(mounted: &Mounted, words: &[&str], at: usize, (on, off): (&str, &str)) -> bool {
    let word = words.get(at).copied().unwrap_or_default();
    let mut later = words.get(at + 1..).unwrap_or_default().iter().map(|word| key_of(word));
    let has = |options: &str, word: &str| options.split(',').any(|option| option == word);
    let implied = |later: &str| match off {
        "exec" => WITH_NOEXEC.contains(&later),
        "suid" | "dev" => WITH_NOEXEC.contains(&later) || WITHOUT_NOEXEC.contains(&later),
        _ => false,
    };
    if word == off {
        let is_open = match off {
            // A remount without a word that sets access times keeps them (kernel, fs/namespace.c, path_mount).
            "atime" | "diratime" => true,
            // A device that cannot be written, or one that failed.
            "rw" => has(&mounted.of_file_system, "ro"),
            _ => false,
        };
        return !is_open
            && has(&mounted.options, on)
            // The last of two contrary words counts.
            && !later.any(|later| later == on || later == off || implied(later));
    }
    let overruled = on == "noatime" && words.iter().any(|word| ACCESS_TIMES.contains(word));
    !overruled && !has(&mounted.options, on) && !later.any(|later| later == on || later == off)
}

/// Returns the declared options that do not count, in their order.
pub fn lacking(mounted: &Mounted, declared: &str) -> Vec<Lacking> {
    let fstype = mounted.fstype.as_str();
    // What is declared is mounted at the first access, or its program decides what comes of it.
    if fstype == "autofs" || fstype.starts_with("fuse") {
        return Vec::new();
    }
    // A bind mount has the file system of another one.
    let is_bind = is_bind(declared);
    let value = |key: &str| {
        let options = mounted.options.split(',').chain(mounted.of_file_system.split(','));
        options
            .filter_map(|option| option.split_once('='))
            .find(|(name, _)| renamed(name) == key)
            .map(|(_, value)| value)
    };
    let words: Vec<&str> = declared.split(',').collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if let Some(flag) = OF_MOUNT.iter().find(|(on, off)| word == on || word == off) {
            if lacks_flag(mounted, &words, at, *flag) {
                found.push(Lacking { option: (*word).to_owned(), fixed: false });
            }
            continue;
        }
        let Some((key, wanted)) = word.split_once('=') else { continue };
        let key = renamed(key);
        let mut later = words.get(at + 1..).unwrap_or_default().iter();
        if is_bind || !is_compared(fstype, key) || later.any(|word| renamed(key_of(word)) == key) {
            continue;
        }
        let page = value("pagesize").filter(|_| fstype == "hugetlbfs").and_then(bytes);
        let differs = match (key, value(key)) {
            (_, Some(live)) => differs(key, live, wanted, page),
            // One connection is what there is without the word. Kernels do not show more over RDMA and in 4.0.
            ("nconnect", None) => {
                let of_tcp = value("proto").is_some_and(|proto| proto.starts_with("tcp"));
                wanted != "1" && of_tcp && value("vers") != Some("4.0")
            }
            _ => false,
        };
        if differs {
            found.push(Lacking { option: (*word).to_owned(), fixed: is_fixed(fstype, word) });
        }
    }
    found
}

/// Returns the one name of an option that has two.
fn renamed(key: &str) -> &str {
    if key == "nfsvers" { "vers" } else { key }
}

/// Whether a remount leaves an option as it is, or is refused because of it.
fn is_fixed(fstype: &str, option: &str) -> bool {
    let key = key_of(option);
    let is_flag = || {
        OF_MOUNT.iter().any(|(on, off)| option == *on || option == *off)
            || OF_FILE_SYSTEM.contains(&option)
            || ACCESS_TIMES.contains(&option)
            || WITH_NOEXEC.contains(&key)
            || WITHOUT_NOEXEC.contains(&key)
    };
    FIXED.contains(&key)
        || takes_flags_only(fstype) && !is_flag()
        || of_smb(fstype) && matches!(key, "vers" | "sec")
}

/// Whether a remount may change an option of the line in fstab.
pub fn remountable(fstype: &str, option: &str) -> bool {
    let key = key_of(option);
    let of_programs = OF_PROGRAMS.contains(&key) || key.starts_with("x-") || key.starts_with("X-");
    !of_programs && !is_fixed(fstype, option)
}

/// Returns the options for `mount -o` that remount a file system, which is refused whole because of one that it cannot
/// change.
pub fn to_remount(fstype: &str, declared: &str) -> String {
    // CIFS compares what it gets with all that it has, and has nothing where it gets nothing.
    let keeps = |word: &&str| of_smb(fstype) || !is_fixed(fstype, word);
    let words = declared.split(',').filter(|word| is_bind(declared) || keeps(word));
    std::iter::once("remount").chain(words).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(fstype: &str, options: &str, of_file_system: &str) -> Mounted {
        let line = format!("1 1 0:1 / /x {options} shared:1 - {fstype} src {of_file_system}");
        Mounted::parse(&line).unwrap()
    }

    fn found(live: &Mounted, declared: &str) -> Vec<(String, bool)> {
        lacking(live, declared).into_iter().map(|lacking| (lacking.option, lacking.fixed)).collect()
    }

    #[test]
    fn what_the_kernel_shows_by_other_words_or_not_at_all_is_no_difference() {
        let xfs = mounted("xfs", "rw,nosuid,noatime", "rw,attr2,inode64,logbufs=8,logbsize=32k,noquota");
        for declared in [
            "defaults",
            "rw,noatime,nofail,_netdev,x-systemd.device-timeout=9,auto,user",
            "noatime,largeio,logbsize=32768,allocsize=1g,logdev=/dev/sdb1",
            "ro,rw",
        ] {
            assert_eq!(found(&xfs, declared), [], "{declared}");
        }
        let nfs =
            mounted("nfs4", "rw,relatime", "rw,vers=4.2,rsize=262144,proto=tcp6,timeo=600,addr=10.0.0.1");
        assert_eq!(found(&nfs, "nfsvers=4,rsize=1048576,proto=tcp,addr=store,timeo=600,nconnect=1"), []);
        let tmpfs = mounted("tmpfs", "rw", "rw,size=1048576k,mode=700,uid=7");
        assert_eq!(found(&tmpfs, "size=1073741000,mode=0700,uid=ann"), []);
        assert_eq!(found(&tmpfs, "size=50%"), []);
        let btrfs = mounted("btrfs", "rw", "rw,compress=zstd:3,subvol=/@home");
        assert_eq!(found(&btrfs, "compress=zstd,subvol=@home"), []);
        let cifs = mounted("cifs", "rw", "rw,vers=3.1.1,sec=ntlmssp");
        assert_eq!(found(&cifs, "vers=default,sec=ntlmssp"), []);
        assert_eq!(found(&cifs, "vers=2.1"), [("vers=2.1".to_owned(), true)]);
        assert_eq!(found(&mounted("autofs", "rw,relatime", "rw,fd=1"), "ro,nodev"), []);
    }

    #[test]
    fn what_is_lacking_is_known_and_whether_a_remount_gives_it() {
        let xfs = mounted("xfs", "ro,nodev", "rw,logbsize=32k");
        let own = |option: &str, fixed| (option.to_owned(), fixed);
        assert_eq!(
            found(&xfs, "rw,noatime,dev,logbsize=256k"),
            [own("rw", false), own("noatime", false), own("dev", false), own("logbsize=256k", true)]
        );
        // A file system that the kernel made read-only after an error is no difference of the mount.
        assert_eq!(found(&mounted("ext4", "rw", "ro,errors=remount-ro"), "rw,errors=remount-ro"), []);
        let nfs = mounted("nfs4", "rw", "rw,vers=4.1,proto=tcp");
        assert_eq!(
            found(&nfs, "vers=4.2,nconnect=8,proto=rdma,noatime"),
            [own("vers=4.2", true), own("nconnect=8", true), own("proto=rdma", true), own("noatime", false)]
        );
        let pages = mounted("hugetlbfs", "rw,relatime", "rw,pagesize=2M");
        assert_eq!(found(&pages, "pagesize=1G"), [own("pagesize=1G", true)]);
        assert_eq!(found(&mounted("hugetlbfs", "rw", "rw,pagesize=1024M"), "pagesize=1G"), []);
    }

    #[test]
    fn nothing_on_hugetlbfs_is_remounted_and_sizes_are_whole_pages() {
        let live = mounted("hugetlbfs", "rw,relatime", "rw,pagesize=1024M,size=1073741824,nr_inodes=9");
        assert_eq!(found(&live, "pagesize=1G,size=1500M,nr_inodes=9,mode=1770,uid=7"), []);
        let lacks = [("size=2G".to_owned(), true), ("nr_inodes=8".to_owned(), true)];
        assert_eq!(found(&live, "pagesize=1G,size=2G,nr_inodes=8"), lacks);
        assert_eq!(found(&live, "size=50%"), []);
        assert!(!remountable("hugetlbfs", "size=2G") && remountable("hugetlbfs", "noexec"));
    }

    #[test]
    fn one_value_has_several_names() {
        let nfs = mounted(
            "nfs4",
            "rw",
            "rw,vers=4.2,proto=tcp,lookupcache=pos,sec=null,timeo=6000,local_lock=none",
        );
        assert_eq!(found(&nfs, "lookupcache=positive,sec=none,proto=tcp6,timeo=10000,local_lock=all"), []);
        assert_eq!(found(&nfs, "sec=krb5:krb5p"), []);
        let lacks = [("lookupcache=none".to_owned(), true), ("sec=krb5p".to_owned(), true)];
        assert_eq!(found(&nfs, "lookupcache=none,sec=krb5p"), lacks);
        for (live, declared) in [("3.1.1", "3.11"), ("3.02", "3.0.2"), ("3.02", "3"), ("2.1", "default")] {
            let cifs = mounted("cifs", "rw", &format!("rw,vers={live},sec=ntlmsspi"));
            assert_eq!(found(&cifs, &format!("vers={declared},sec=ntlmssp")), [], "{declared}");
        }
        let tmpfs = mounted("tmpfs", "rw", "rw,size=1048576k,nr_inodes=2048,huge=always,mode=1770");
        assert_eq!(found(&tmpfs, "size=1GiB,nr_inodes=2k,huge=always,mode=01770"), []);
        assert_eq!(found(&tmpfs, "size=2g,huge=never").len(), 2);
    }

    #[test]
    fn options_that_all_mounts_of_a_file_system_share_are_left_alone() {
        let btrfs = mounted("btrfs", "rw", "rw,compress=zstd:1,sync,subvol=/@home");
        assert_eq!(found(&btrfs, "subvol=@home,compress=zstd:3,async,lazytime"), []);
        assert_eq!(found(&mounted("ext4", "rw", "rw,errors=panic"), "errors=remount-ro"), []);
        assert_eq!(found(&mounted("xfs", "rw", "rw,allocsize=32k"), "allocsize=96k"), []);
        assert_eq!(found(&btrfs, "subvol=@data"), [("subvol=@data".to_owned(), true)]);
    }

    #[test]
    fn words_that_imply_others_are_heard() {
        let live = mounted("ext4", "rw,nosuid,nodev,noexec,relatime", "rw");
        for declared in
            ["exec,users", "dev,user", "suid,owner", "suid,dev,group", "dev,user=ann", "noexec,exec,user"]
        {
            assert_eq!(found(&live, declared), [], "{declared}");
        }
        assert_eq!(found(&live, "users,exec"), [("exec".to_owned(), false)]);
        assert_eq!(found(&live, "exec,owner"), [("exec".to_owned(), false)]);
        // A remount keeps access times unless a word sets them, and of several words not the last counts.
        assert_eq!(found(&mounted("ext4", "rw,noatime,nodiratime", "rw"), "atime,diratime"), []);
        assert_eq!(found(&live, "noatime,strictatime"), []);
        // A device that cannot be written.
        assert_eq!(found(&mounted("ext4", "ro", "ro"), "rw,noatime"), [("noatime".to_owned(), false)]);
    }

    #[test]
    fn mounts_that_a_program_or_another_mount_decides_have_few_options_to_compare() {
        assert_eq!(found(&mounted("fuse.glusterfs", "rw,nosuid,nodev", "rw"), "rw,suid,dev,noatime"), []);
        let bind = mounted("tmpfs", "rw", "rw,size=1g");
        assert_eq!(found(&bind, "bind,ro,size=2g"), [("ro".to_owned(), false)]);
        // Kernels leave these connections out.
        for live in ["vers=3,proto=rdma", "vers=4.0,proto=tcp", "vers=3,proto=udp"] {
            assert_eq!(found(&mounted("nfs", "rw", live), "nconnect=8"), [], "{live}");
        }
    }

    #[test]
    fn types_have_more_than_one_name() {
        for (live, declared) in [
            ("nfs4", "nfs"),
            ("ext4", "ext3"),
            ("fuse.sshfs", "sshfs"),
            ("autofs", "xfs"),
            ("xfs", "auto"),
            ("ext4", "none"),
        ] {
            assert!(!other_type(&mounted(live, "rw", "rw"), declared, "defaults"), "{live}");
        }
        assert!(other_type(&mounted("tmpfs", "rw", "rw"), "hugetlbfs", "defaults"));
        assert!(other_type(&mounted("ext4", "rw", "rw"), "xfs", "defaults"));
        assert!(!other_type(&mounted("ext4", "rw", "rw"), "xfs", "bind,ro"));
    }
}
