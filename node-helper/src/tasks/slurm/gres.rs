//! gres.conf: what it gives a node, and the same file with other lines for it. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use gpufleet_protocol::{cpus::CpuList, slurm};

use super::conf::{self, Line};

/// More device files than any node has.
const MOST_FILES: usize = 1024;
/// Keys of a line that are made anew.
const OURS: [&str; 7] = ["NodeName", "Name", "Type", "File", "Cores", "Count", "AutoDetect"];

/// A GPU by its device file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    pub kind: Option<String>,
    pub cores: CpuList,
}

/// What the file gives a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    pub gpus: BTreeMap<String, Gpu>,
    /// GPUs without a device file.
    pub without_file: u64,
    /// Device files that lines of this node alone name more than once: slurmd does not start with these.
    pub repeated: BTreeSet<String>,
    /// As `AutoDetect` says, in small letters; `off` if nobody does.
    pub detect: String,
    /// The numbers of lines that this node shares with others.
    pub shared: Vec<usize>,
    own: Vec<Own>,
    /// What lines of this node have besides, such as ` Flags=nvidia_gpu_env`.
    more: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
    lines: Range<usize>,
    comment: Option<String>,
}

/// Reads what the file gives a node.
///
/// # Errors
/// What it does not know, or what must not be there.
pub fn read(text: &str, node: &str) -> Result<Given, String> {
    let lines = conf::lines(text);
    // A file with lines of other nodes is the cluster's, and a line without a node is then that of all nodes.
    let is_of_all =
        lines.iter().filter_map(|line| line.get("NodeName")).any(|list| !conf::is_alone(list, node));
    let mut given = Given { detect: "off".to_owned(), ..Given::default() };
    let (mut detect_of_node, mut more): (_, Option<String>) = (None, None);
    let mut of_others: BTreeSet<String> = BTreeSet::new();
    for line in &lines {
        if line.get("Include").is_some() {
            return Err(format!("line {} includes another file, which is not read here", line.number()));
        }
        let list = line.get("NodeName");
        if list.is_some_and(|list| !conf::covers(list, node)) {
            continue;
        }
        let is_own = list.map_or(!is_of_all, |list| conf::is_alone(list, node));
        let name = line.get("Name");
        if let Some(detect) = line.get("AutoDetect").map(str::to_lowercase) {
            match list {
                Some(_) => detect_of_node = Some(detect),
                None => given.detect = detect,
            }
        }
        match name {
            // Slurm takes it for all nodes that have no value of their own.
            None if list.is_none() => continue,
            None if line.get("AutoDetect").is_none() => continue,
            Some(name) if !name.eq_ignore_ascii_case("gpu") => continue,
            _ => {}
        }
        if line.get("MultipleFiles").is_some() {
            return Err(format!(
                "line {} has MultipleFiles: jobs get a wrong CUDA_VISIBLE_DEVICES with it; take the line out, and let slurmd \
                 find MIG devices with `autodetect: nvml`",
                line.number()
            ));
        }
        if name.is_some() {
            gpus(line, is_own, &mut of_others, &mut given)?;
        }
        if !is_own {
            given.shared.push(line.number());
            continue;
        }
        let others: String = line
            .words
            .iter()
            .filter(|word| !OURS.iter().any(|key| word.key.eq_ignore_ascii_case(key)))
            .map(|word| format!(" {}={}", word.key, word.value))
            .collect();
        if name.is_some() && *more.get_or_insert_with(|| others.clone()) != others {
            return Err(format!(
                "line {} has{others}, which other lines of this node do not have",
                line.number()
            ));
        }
        given.own.push(Own { lines: line.lines.clone(), comment: line.comment.clone() });
    }
    given.detect = detect_of_node.unwrap_or(given.detect);
    given.more = more.unwrap_or_default();
    Ok(given)
}

/// `of_others` are the device files that lines of several nodes name.
fn gpus(
    line: &Line,
    is_own: bool,
    of_others: &mut BTreeSet<String>,
    given: &mut Given,
) -> Result<(), String> {
    let wrong = |what: &str| format!("line {}: {what}", line.number());
    let kind = line.get("Type").map(str::to_owned);
    let cores = match line.get("Cores") {
        Some(text) => text.parse().map_err(|_| wrong("its Cores are no list of numbers"))?,
        None => CpuList::default(),
    };
    let Some(list) = line.get("File") else {
        let count = line.get("Count").map_or(Ok(1), str::parse);
        given.without_file =
            given.without_file.saturating_add(count.map_err(|_| wrong("its Count is no number"))?);
        return Ok(());
    };
    for path in files(list).ok_or_else(|| wrong("its File is no list of device files"))? {
        let gpu = Gpu { kind: kind.clone(), cores: cores.clone() };
        let is_again = given.gpus.insert(path.clone(), gpu).is_some();
        if is_again && (!is_own || of_others.contains(&path)) {
            return Err(wrong(&format!(
                "{path} is named by an earlier line of the node, too, and slurmd does not start with that: name each device file \
                 once, in this line or in the other, then start slurmd on the nodes of both"
            )));
        }
        if is_again {
            given.repeated.insert(path);
        } else if !is_own {
            of_others.insert(path);
        }
    }
    Ok(())
}

/// Returns the files of `/dev/nvidia[0-3],/dev/nvidia7`.
fn files(list: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        let (head, tail) = rest.split_at_checked(end)?;
        if let Some(inner) = tail.strip_prefix('[') {
            let (numbers, after) = inner.split_once(']')?;
            let numbers: CpuList = numbers.parse().ok()?;
            if numbers.is_empty() || numbers.len() + all.len() > MOST_FILES {
                return None;
            }
            let (end, next) = after.split_once(',').unwrap_or((after, ""));
            all.extend(numbers.iter().map(|number| format!("{head}{number}{end}")));
            rest = next;
        } else {
            all.push(head.to_owned());
            rest = tail.strip_prefix(',').unwrap_or_default();
        }
    }
    (all.len() <= MOST_FILES && all.iter().all(|path| path.starts_with('/'))).then_some(all)
}

/// What the file is to give the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// GPUs by their device files.
    Lines(Vec<slurm::Offer>),
    /// What slurmd finds by this.
    Found(&'static str),
    /// Known only in the run: an earlier task of a prediction gives the GPUs another layout.
    Open,
}

impl Wanted {
    /// Returns the lines for the node.
    pub fn lines(&self, node: &str, more: &str) -> Vec<String> {
        match self {
            Self::Lines(offers) => {
                let lines = slurm::lines(offers).into_iter();
                lines.map(|line| format!("NodeName={node} AutoDetect=off {line}{more}")).collect()
            }
            Self::Found(how) => vec![format!("NodeName={node} AutoDetect={how}")],
            Self::Open => Vec::new(),
        }
    }

    /// Returns the GPUs by their device files.
    pub fn gpus(&self) -> BTreeMap<String, Gpu> {
        let Self::Lines(offers) = self else { return BTreeMap::new() };
        let gpu = |offer: &slurm::Offer| Gpu { kind: offer.kind.clone(), cores: offer.cores.clone() };
        offers.iter().map(|offer| (format!("/dev/nvidia{}", offer.minor), gpu(offer))).collect()
    }

    pub fn detect(&self) -> &'static str {
        match self {
            Self::Lines(_) | Self::Open => "off",
            Self::Found(how) => how,
        }
    }

    /// Keeps the cores that somebody gave where the node tells none.
    pub fn keep_cores(&mut self, given: &Given) {
        let Self::Lines(offers) = self else { return };
        for offer in offers.iter_mut().filter(|offer| offer.cores.is_empty()) {
            if let Some(gpu) = given.gpus.get(&format!("/dev/nvidia{}", offer.minor)) {
                offer.cores = gpu.cores.clone();
            }
        }
    }
}

/// How the file differs from what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    None,
    /// Only the cores near a GPU.
    Cores,
    /// Which GPUs there are, or of which type.
    Gpus,
}

impl Given {
    pub fn difference(&self, wanted: &Wanted) -> Difference {
        let (found, wanted_gpus) = (&self.gpus, wanted.gpus());
        if self.without_file > 0 || !self.repeated.is_empty() || self.detect != wanted.detect() {
            return Difference::Gpus;
        }
        if *found == wanted_gpus {
            return Difference::None;
        }
        let same = found.len() == wanted_gpus.len()
            && wanted_gpus.iter().all(|(path, gpu)| found.get(path).is_some_and(|old| old.kind == gpu.kind));
        if same { Difference::Cores } else { Difference::Gpus }
    }

    /// Returns the file's text with these lines in place of the node's own.
    pub fn edited(&self, text: &str, node: &str, wanted: &Wanted) -> String {
        let new = wanted.lines(node, &self.more);
        let mut edits: Vec<(Range<usize>, Vec<String>)> = Vec::new();
        for (at, own) in self.own.iter().enumerate() {
            let mut lines: Vec<String> = own.comment.iter().cloned().collect();
            if at == 0 {
                lines.extend(new.clone());
            }
            edits.push((own.lines.clone(), lines));
        }
        let appended = if self.own.is_empty() { new } else { Vec::new() };
        conf::replaced(text, &edits, &appended)
    }

    /// Says in words what the file gives.
    pub fn told(&self) -> Option<String> {
        if self.gpus.is_empty() && self.without_file == 0 && self.detect == "off" {
            return None;
        }
        let mut text = told(&self.gpus, &self.detect, self.without_file);
        if !self.repeated.is_empty() {
            let files: Vec<&str> = self.repeated.iter().map(String::as_str).collect();
            text.push_str(&format!(", named more than once: {}", files.join(", ")));
        }
        Some(text)
    }
}

/// Returns the lines to write in the place of those that a node shares, by their numbers: the same ones for the other nodes,
/// and then the node's own; `None` where a line does not name its nodes, or their list cannot be split.
pub fn split(text: &str, shared: &[usize], node: &str, wanted: &Wanted) -> Option<Vec<String>> {
    let lines = conf::lines(text);
    let mut all = Vec::new();
    for line in lines.iter().filter(|line| shared.contains(&line.number())) {
        let others = conf::without(line.get("NodeName")?, node)?;
        if line.lines.len() > 1 {
            return None;
        }
        all.push(conf::with_values(text, line, &[("NodeName", others)]));
    }
    all.extend(wanted.lines(node, ""));
    Some(all)
}

/// Says in words which GPUs there are: `2 h100 (cores 0-7), 2 h100 (cores 8-15)`.
pub fn told(gpus: &BTreeMap<String, Gpu>, detect: &str, without_file: u64) -> String {
    let mut groups: Vec<(String, usize, &str, &str)> = Vec::new();
    for (path, gpu) in gpus {
        let kind = gpu.kind.as_deref().unwrap_or("GPU");
        let cores = if gpu.cores.is_empty() { String::new() } else { format!(" near cores {}", gpu.cores) };
        let what = format!("{kind}{cores}");
        match groups.last_mut().filter(|(last, ..)| *last == what) {
            Some((_, count, _, end)) => (*count, *end) = (*count + 1, path),
            None => groups.push((what, 1, path, path)),
        }
    }
    let mut parts: Vec<String> = groups
        .iter()
        .map(|(what, count, first, last)| match count {
            1 => format!("1 {what} ({first})"),
            _ => format!("{count} {what} ({first} to {last})"),
        })
        .collect();
    if without_file > 0 {
        parts.push(format!("{without_file} without a device file"));
    }
    if detect != "off" {
        parts.push(format!("AutoDetect={detect}"));
    }
    if parts.is_empty() { "no GPU".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, cores: &str) -> slurm::Offer {
        slurm::Offer { minor, kind: Some("h100".to_owned()), cores: cores.parse().unwrap() }
    }

    #[test]
    fn lines_of_others_and_comments_stay() {
        let text = "# the cluster's\nAutoDetect=nvml\nNodeName=gpu[2-9] Name=gpu File=/dev/nvidia[0-7]\n\
                    NodeName=gpu1 Name=gpu Type=a100 File=/dev/nvidia[0-1] Flags=nvidia_gpu_env # two of them\n\
                    NodeName=gpu1 Name=nic File=/dev/x\nNodeName=gpu1 Name=gpu Type=a100 File=/dev/nvidia2 Flags=nvidia_gpu_env\n";
        let given = read(text, "gpu1").unwrap();
        assert_eq!((given.gpus.len(), given.detect.as_str(), given.shared.is_empty()), (3, "nvml", true));
        let wanted = Wanted::Lines(vec![offer(0, "0-7"), offer(1, "8-15")]);
        assert_eq!(given.difference(&wanted), Difference::Gpus);
        let new = given.edited(text, "gpu1", &wanted);
        assert_eq!(
            new,
            "# the cluster's\nAutoDetect=nvml\nNodeName=gpu[2-9] Name=gpu File=/dev/nvidia[0-7]\n# two of them\n\
             NodeName=gpu1 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia0 Cores=0-7 Flags=nvidia_gpu_env\n\
             NodeName=gpu1 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia1 Cores=8-15 Flags=nvidia_gpu_env\n\
             NodeName=gpu1 Name=nic File=/dev/x\n"
        );
        let again = read(&new, "gpu1").unwrap();
        assert_eq!(again.difference(&wanted), Difference::None);
        assert_eq!(
            again.told().unwrap(),
            "1 h100 near cores 0-7 (/dev/nvidia0), 1 h100 near cores 8-15 (/dev/nvidia1)"
        );
        assert_eq!(again.difference(&Wanted::Lines(vec![offer(0, "0-7"), offer(1, "")])), Difference::Cores);
    }

    #[test]
    fn lines_of_several_nodes_are_told_apart() {
        let shared = read("NodeName=gpu[1-8] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n", "gpu3").unwrap();
        assert_eq!((shared.shared.as_slice(), shared.gpus.len()), (&[1][..], 8));
        let of_all = read("Name=gpu File=/dev/nvidia0\nNodeName=gpu[1-8] Name=nic\n", "gpu3").unwrap();
        assert_eq!(of_all.shared, [1]);
        let alone = read("Name=gpu File=/dev/nvidia0\n", "gpu3").unwrap();
        assert_eq!(alone.shared, Vec::<usize>::new());
        assert_eq!(read("Name=gpu Count=4", "gpu3").unwrap().told().unwrap(), "4 without a device file");
    }

    #[test]
    fn a_line_of_several_nodes_is_split_for_whoever_writes_it() {
        let text = "NodeName=gpu[1-8] Name=gpu Type=h100 File=/dev/nvidia[0-7] # rack 3\n";
        let wanted = Wanted::Lines(vec![offer(0, "0-7")]);
        assert_eq!(
            split(text, &[1], "gpu3", &wanted).unwrap(),
            [
                "NodeName=gpu[1-2,4-8] Name=gpu Type=h100 File=/dev/nvidia[0-7] # rack 3",
                "NodeName=gpu3 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia0 Cores=0-7"
            ]
        );
        assert_eq!(
            split("Name=gpu File=/dev/nvidia0\nNodeName=gpu[1-8] Name=nic\n", &[1], "gpu3", &wanted),
            None
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for (text, why) in [
            ("Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap12", "MultipleFiles"),
            ("Include /etc/slurm/more.conf", "includes another file"),
            ("Name=gpu File=/dev/nvidia[0-99999]", "no list of device files"),
            ("Name=gpu File=/dev/nvidia0 Cores=x", "no list of numbers"),
            (
                "NodeName=n[1-2],n Name=gpu File=/dev/nvidia0\nNodeName=n Name=gpu File=/dev/nvidia[0-1]",
                "line 2: /dev/nvidia0 is named by an earlier line of the node, too",
            ),
            (
                "NodeName=n Name=gpu File=/dev/nvidia0\nNodeName=n[1-2],n Name=gpu File=/dev/nvidia[0-1]",
                "name each device file once",
            ),
            ("Name=gpu File=/dev/nvidia0 Flags=a\nName=gpu File=/dev/nvidia1", "which other lines"),
        ] {
            let said = read(text, "n").unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    /// slurmd does not start with them, so that the node is broken until somebody writes the lines anew: that is the task.
    #[test]
    fn a_gpu_that_is_named_three_times_is_repaired() {
        let text = "Name=gpu Type=h100 File=/dev/nvidia[0-1]\nName=gpu Type=h100 File=/dev/nvidia0\n\
                    Name=gpu Type=h100 File=/dev/nvidia0 # once more\n";
        let given = read(text, "n").unwrap();
        let wanted = Wanted::Lines(vec![offer(0, ""), offer(1, "")]);
        assert_eq!(given.difference(&wanted), Difference::Gpus, "though the GPUs are the right ones");
        assert_eq!(
            given.told().unwrap(),
            "2 h100 (/dev/nvidia0 to /dev/nvidia1), named more than once: /dev/nvidia0"
        );
        let again = read(&given.edited(text, "n", &wanted), "n").unwrap();
        assert_eq!((again.difference(&wanted), again.repeated.len()), (Difference::None, 0));
    }

    #[test]
    fn cores_given_by_hand_stay_where_the_node_tells_none() {
        let given = read("Name=gpu Type=h100 File=/dev/nvidia0 Cores=0-3", "n").unwrap();
        let mut wanted = Wanted::Lines(vec![offer(0, "")]);
        wanted.keep_cores(&given);
        assert_eq!(given.difference(&wanted), Difference::None);
    }
}
