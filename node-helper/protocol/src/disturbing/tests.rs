use proptest::prelude::*;

use super::*;

fn line(text: &str) -> Option<Act> {
    of_shell(text).map(|found| found.act)
}

#[test]
fn what_disturbs_is_recognised_whoever_starts_it() {
    use Act::{
        ChangesInstances, EndsClients, GoesDown, Reboots, ResetsDevice, ResetsGpus, StopsService,
        SwitchesMig, UnloadsDriver, Withdraws,
    };
    for (text, act) in [
        ("reboot", Reboots),
        ("/sbin/reboot -f", Reboots),
        ("sleep 2 && shutdown -r now \"Ansible updates\"", Reboots),
        ("shutdown -rf +5", Reboots),
        ("systemctl --no-block reboot", Reboots),
        ("systemctl start reboot.target", Reboots),
        ("init 6", Reboots),
        ("kexec -e", Reboots),
        ("echo b > /proc/sysrq-trigger", Reboots),
        ("echo b | sudo tee /proc/sysrq-trigger", Reboots),
        ("cat x >/proc/sysrq-trigger", Reboots),
        ("sudo -n -u root nohup reboot &", Reboots),
        ("nohup sh -c 'sleep 5; reboot' >/dev/null 2>&1 &", Reboots),
        ("needs-restarting -r || reboot", Reboots),
        ("if [ -f /run/reboot-required ]; then\n  reboot\nfi", Reboots),
        ("case $1 in now) reboot;; esac", Reboots),
        ("x=$(reboot)", Reboots),
        ("echo \"it is `reboot` now\"", Reboots),
        ("bash -euxc 'reboot'", Reboots),
        ("bash <<EOF\nreboot\nEOF\n", Reboots),
        ("sh <<< reboot", Reboots),
        ("echo reboot | at now + 1 minute", Reboots),
        ("echo 'reboot' | sh", Reboots),
        ("python3 -c 'import os; os.system(\"reboot\")'", Reboots),
        ("systemd-run --on-active=5 systemctl reboot", Reboots),
        ("timeout -k 5 60 reboot", Reboots),
        ("nsenter -t 1 -m -- reboot", Reboots),
        ("chroot /host systemctl reboot", Reboots),
        (
            "dbus-send --system --dest=org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager.Reboot boolean:false",
            Reboots,
        ),
        ("ipmitool -H bmc1 chassis power cycle", Reboots),
        ("scontrol reboot asap nextstate=resume gpu001", Reboots),
        ("poweroff", GoesDown),
        ("shutdown -h now", GoesDown),
        ("shutdown", GoesDown),
        ("systemctl isolate rescue.target", GoesDown),
        ("echo o > /proc/sysrq-trigger", GoesDown),
        ("init 0", GoesDown),
        ("scontrol update nodename=gpu[001-004] state=DOWN reason=x", Withdraws),
        ("kubectl --context prod drain gpu001 --ignore-daemonsets", Withdraws),
        ("kubectl taint nodes gpu001 a=b:NoExecute", Withdraws),
        ("nvidia-smi --gpu-reset", ResetsGpus),
        ("nvidia-smi -i 0 -r", ResetsGpus),
        ("LD_LIBRARY_PATH=/x env A=b nvidia-smi --gpu-reset -i 0", ResetsGpus),
        ("for gpu in 0 1; do nvidia-smi --gpu-reset -i $gpu; done", ResetsGpus),
        ("nvidia-smi -i 0 -mig 1", SwitchesMig),
        ("nvidia-smi --multi-instance-gpu=1", SwitchesMig),
        ("nvidia-mig-parted apply -f c.yaml -c all-1g.10gb", SwitchesMig),
        ("nvidia-smi mig -cgi 9,9 -C", ChangesInstances),
        ("nvidia-smi mig -dci; nvidia-smi mig -dgi", ChangesInstances),
        ("rmmod nvidia_uvm nvidia", UnloadsDriver),
        ("modprobe -r nvidia-drm", UnloadsDriver),
        ("sh ./NVIDIA-Linux-x86_64-580.65.06.run --silent", UnloadsDriver),
        ("./NVIDIA-Linux-x86_64-580.65.06.run --silent", UnloadsDriver),
        ("echo 1 > /sys/bus/pci/devices/0000:17:00.0/remove", ResetsDevice),
        ("systemctl stop kubelet", StopsService),
        ("systemctl disable --now slurmd.service", StopsService),
        ("systemctl restart docker", StopsService),
        ("service docker restart", StopsService),
        ("/etc/init.d/openibd restart", StopsService),
        ("fuser -kv /dev/nvidia0", EndsClients),
        ("nvidia-smi -mig 1 && reboot", Reboots),
    ] {
        assert_eq!(line(text), Some(act), "{text}");
    }
}

#[test]
fn what_only_reads_or_says_a_word_is_not() {
    for text in [
        "",
        "uptime",
        "echo reboot",
        "echo 'please reboot' # reboot\n",
        "grep -q reboot /etc/x",
        "ls /sbin/reboot",
        "last reboot",
        "which shutdown",
        "shutdown -c",
        "shutdown --help",
        "reboot --help",
        "man reboot",
        "systemctl status reboot.target",
        "systemctl list-units --type service",
        "systemctl restart kubelet slurmd",
        "systemctl enable kubelet",
        "systemctl disable kubelet",
        "systemctl stop chronyd",
        "systemctl -H other reboot",
        "kexec -l /boot/vmlinuz",
        "echo t > /proc/sysrq-trigger",
        "echo 1 > /proc/sys/kernel/sysrq",
        "nvidia-smi",
        "nvidia-smi -q -d ECC",
        "nvidia-smi --query-gpu=mig.mode.current --format=csv",
        "nvidia-smi -L | grep MIG",
        "nvidia-smi nvlink -r 0",
        "nvidia-smi mig -lgip",
        "nvidia-smi -pm 1",
        "modprobe nvidia",
        "modprobe -r pcspkr",
        "lsmod | grep nvidia",
        "rmmod pcspkr",
        "scontrol show node gpu001",
        "scontrol update nodename=gpu001 state=resume",
        "scontrol update NodeName=gpu001 State=drain Reason=\"x\"",
        "kubectl cordon gpu001",
        "scontrol update jobid=1 timelimit=10",
        "kubectl get nodes",
        "kubectl uncordon gpu001",
        "kubectl delete pod drain",
        "ipmitool power status",
        "cat > /etc/motd <<EOF\nreboot\nEOF\n",
        "ssh other reboot",
        "python3 -c 'print(\"reboot\")'",
        "$CMD",
        "fuser -v /dev/nvidia0",
    ] {
        assert_eq!(line(text), None, "{text}");
    }
}

/// An attacker's list: each of them rebooted a node.
#[test]
fn what_a_shell_makes_of_other_spellings_is_seen() {
    for text in [
        "function f { reboot; }; f",
        "$'reboot'",
        "$(echo reboot)",
        "`echo reboot`",
        "cat <<E | bash\nreboot\nE\n",
        "bash <(echo reboot)",
        ". <(echo reboot)",
        "find / -maxdepth 0 -exec reboot \\;",
        "setsid -f reboot",
        "runuser -c reboot",
        "runuser -l root -c 'sleep 1; reboot'",
        "${X:-reboot}",
        "coproc reboot",
        "loginctl reboot",
        "systemctl start --no-block systemd-reboot",
    ] {
        assert_eq!(line(text), Some(Act::Reboots), "{text}");
    }
    assert_eq!(line("kmod rmmod nvidia"), Some(Act::UnloadsDriver));
    assert_eq!(line("systemctl stop 'slurm*'"), Some(Act::StopsService));
    for text in [
        "cat <(echo reboot)",
        "echo $(echo reboot)",
        "find / -name reboot",
        "cat <<E | grep x\nreboot\nE\n",
        "echo ${REASON:-reboot}",
        "systemctl stop 'chrony*'",
    ] {
        assert_eq!(line(text), None, "{text}");
    }
}

#[test]
fn words_without_a_shell_are_read_as_they_are() {
    let argv = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        of_program(&Program::Argv(words), None).map(|found| found.act)
    };
    assert_eq!(argv(&["reboot"]), Some(Act::Reboots));
    assert_eq!(argv(&["echo", "x", "&&", "reboot"]), None);
    assert_eq!(argv(&["sh", "-c", "true; reboot"]), Some(Act::Reboots));
    assert_eq!(argv(&["nvidia-smi", "-r"]), Some(Act::ResetsGpus));
    let sh = Program::Argv(vec!["sh".to_owned()]);
    assert_eq!(of_program(&sh, Some("reboot\n")).map(|found| found.act), Some(Act::Reboots));
}

#[test]
fn scripts_are_read_in_their_language() {
    let act = |text: &str, interpreter| of_script(text, interpreter).map(|found| found.act);
    assert_eq!(act("#!/bin/bash\nset -e\nreboot_it() {\n  reboot\n}\nreboot_it\n", None), Some(Act::Reboots));
    assert_eq!(act("reboot\n", None), Some(Act::Reboots));
    let python = "#!/usr/bin/env python3\nimport subprocess\nprint('reboot')\nsubprocess.run(['nvidia-smi', '--gpu-reset'])\n";
    assert_eq!(act(python, None), Some(Act::ResetsGpus));
    assert_eq!(act("print('reboot')\n", Some("/usr/bin/python3")), None);
}

#[test]
fn templates_stand_for_any_word() {
    let act = |text: &str| of_template(text, true).map(|found| found.act);
    assert_eq!(act("nvidia-smi -i {{ gpu }} --gpu-reset"), Some(Act::ResetsGpus));
    assert_eq!(act("{% if now %}reboot{% endif %}"), Some(Act::Reboots));
    assert_eq!(act("{{ 'reboot' }}"), None, "only what is known counts");
    assert_eq!(act("systemctl {{ action }} kubelet"), None);
    assert_eq!(of_template("shutdown -r {{ when }}", false).map(|found| found.act), Some(Act::Reboots));
}

#[test]
fn kinds_for_many_purposes_are_judged_by_what_they_name() {
    use Act::{Reboots, ResetsDevice, StopsService, TakesFromWork, UnloadsDriver};
    let act = |kind: &str, with: serde_json::Value| {
        let read = crate::tasks::find(kind).unwrap().parse(with).unwrap();
        let crate::tasks::Params::Node(op) = read else { panic!("{kind} is not the node's") };
        kinds::of_op(&op).map(|found| found.act)
    };
    for (kind, with, wanted) in [
        ("service", serde_json::json!({"name": "kubelet", "state": "stopped"}), Some(StopsService)),
        ("service", serde_json::json!({"name": "slurmd.service", "state": "stopped"}), Some(StopsService)),
        (
            "service",
            serde_json::json!({"name": "nvidia-fabricmanager", "state": "restarted"}),
            Some(StopsService),
        ),
        ("service", serde_json::json!({"name": "slurmd", "state": "restarted"}), None),
        ("service", serde_json::json!({"name": "kubelet", "enabled": false}), None),
        ("service", serde_json::json!({"name": "poweroff.target", "state": "started"}), Some(Act::GoesDown)),
        ("service", serde_json::json!({"name": "reboot.target", "state": "started"}), Some(Reboots)),
        ("modprobe", serde_json::json!({"name": "nvidia", "state": "absent"}), Some(UnloadsDriver)),
        ("modprobe", serde_json::json!({"name": "mlx5_core", "state": "absent"}), Some(ResetsDevice)),
        ("modprobe", serde_json::json!({"name": "nvidia"}), None),
        (
            "package",
            serde_json::json!({"name": ["vim", "nvidia-driver-580"], "state": "absent"}),
            Some(TakesFromWork),
        ),
        ("apt", serde_json::json!({"name": "docker-ce", "state": "absent"}), Some(StopsService)),
        (
            "dnf",
            serde_json::json!({"name": "nvidia-fabricmanager-580", "state": "absent"}),
            Some(StopsService),
        ),
        ("package", serde_json::json!({"name": "nvidia-driver-assistant", "state": "absent"}), None),
        ("package", serde_json::json!({"name": "nvidia-driver-580"}), None),
        ("file", serde_json::json!({"path": "/dev/nvidia0", "state": "absent"}), Some(TakesFromWork)),
        ("file", serde_json::json!({"path": "/dev/nvidia0", "mode": "0666"}), None),
        ("sysctl", serde_json::json!({"name": "kernel.sysrq", "value": "1"}), None),
    ] {
        assert_eq!(act(kind, with.clone()), wanted, "{kind}: {with}");
    }
    assert_eq!(line("rm -f /dev/nvidia0"), Some(TakesFromWork));
    assert_eq!(line("modprobe -r mlx5_core"), Some(ResetsDevice));
}

#[test]
fn it_says_what_it_found_and_what_to_write() {
    let found = of_shell("sleep 1; sudo shutdown -r now").unwrap();
    assert_eq!(found.to_string(), "`shutdown -r now` reboots the node");
    assert!(found.refusal().unwrap().contains("write `reboot:`"));
    let found = of_shell("nvidia-smi --gpu-reset -i 0").unwrap();
    assert_eq!((found.refusal(), found.class()), (None, Disruption::GpuReset));
    assert!(found.change().to_string().contains("GPUs reset"), "{}", found.change());
    let long = of_shell(&format!("nvidia-smi --gpu-reset -i {}\u{1b}", "9".repeat(500))).unwrap();
    assert!(long.command.chars().count() <= TOLD && !long.command.contains('\u{1b}'));
}

proptest! {
    #[test]
    fn any_text_is_read_to_its_end(text in "[ -~\n\t{}$`\"'\\\\|&;<>()]{0,200}") {
        let _ = (of_shell(&text), of_script(&text, Some("python3")), of_template(&text, true), of_template(&text, false));
    }

    #[test]
    fn calm_commands_around_it_hide_nothing(
        before in proptest::sample::select(vec!["true", "cd /x", "echo 'a; b'", "x=1", "test -e /y", "sleep 1 &", "a | b"]),
        operator in proptest::sample::select(vec!["; ", " && ", " || ", "\n", " & "]),
        disturbing in proptest::sample::select(vec!["reboot", "nvidia-smi -r", "sudo rmmod nvidia", "sh -c 'init 6'"]),
        after in proptest::sample::select(vec!["", "; true", " || exit 1", " # done", " 2>&1 | tee /var/log/x"]),
    ) {
        let text = format!("{before}{operator}{disturbing}{after}");
        prop_assert_eq!(line(&text), line(disturbing), "{}", text);
        let quoted = text.replace('\'', "'\\''");
        prop_assert_eq!(line(&format!("sudo bash -c '{quoted}'")), line(disturbing), "{}", text);
        prop_assert_eq!(line(&format!("echo '{quoted}'")), None);
    }

    #[test]
    fn deep_texts_end(depth in 0_usize..400) {
        let text = format!("{}reboot{}", "$(".repeat(depth), ")".repeat(depth));
        let _ = of_shell(&text);
        let _ = of_shell(&"sudo ".repeat(depth));
    }
}
