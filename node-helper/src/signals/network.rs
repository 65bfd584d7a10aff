//! Signals of network cards: ports for RDMA, and interfaces of Ethernet.
//!
//! Reads what sysfs tells of cards: PCI devices that are no virtual functions. Those share the port of their card and
//! count nothing of their own; devices made of software have no port. Nothing here says which ports should be up: many
//! are unplugged on purpose. Invariant: where one card cannot be listed, none counts as missing.

use gpufleet_protocol::{
    signal::{Readings, Signal, SubjectReadings},
    topology::RdmaPort,
};

use super::{Found, Named, Reader, pci, signal};

const RDMA: &str = "/sys/class/infiniband";
const NET: &str = "/sys/class/net";
/// More ports, and interfaces of cards, than any node has.
const MOST_PORTS: usize = 64;
const MOST_LINKS: usize = 64;
/// What the kernel writes in the place of a counter that the card does not have.
const NO_COUNTER: &str = "N/A (no PMA)";
/// What a link of unknown width is given as.
const UNKNOWN_WIDTH: u32 = 255;

/// An RDMA device of a card.
struct Card {
    name: String,
    address: String,
    ports: Vec<u32>,
}

/// Returns the ports, and the signals of the node.
pub fn read(reader: &Reader<'_>) -> (Vec<SubjectReadings>, Vec<Named>) {
    let cards = cards(reader);
    let ports: Vec<SubjectReadings> = match &cards {
        Ok(cards) => cards.iter().flat_map(|card| ports(reader, card)).collect(),
        Err(_) => Vec::new(),
    };
    let listed = || cards.as_ref().map_err(Clone::clone);
    let named = vec![
        ("rdma_devices", signal(listed().map(|cards| Some(cards.len())))),
        ("ib_up", signal(listed().and_then(|_| up(&ports)))),
        ("ib_down", signal(listed().map(|_| Some(down(&ports))))),
        ("missing_uverbs", signal(listed().and_then(|cards| missing_files(reader, cards)))),
        ("eth_links", signal(eth_links(reader))),
    ];
    (ports, named)
}

pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'@');
    !name.is_empty() && name.len() <= 63 && !name.starts_with('.') && name.bytes().all(plain)
}

/// Returns the names of a class in their order; none where the kernel has no such class.
fn class(reader: &Reader<'_>, folder: &str) -> Result<Vec<String>, String> {
    let mut names = match reader.names(folder)? {
        Some(names) => names,
        None if reader.exists("/sys/class")? => Vec::new(),
        None => return Err("/sys/class: there is no such folder".to_owned()),
    };
    names.retain(|name| is_name(name));
    // As people count: mlx5_9 before mlx5_10.
    names.sort_by_key(|name| (name.len(), name.clone()));
    Ok(names)
}

/// Returns the PCI address of a card; `None` for a virtual function, and for what is no PCI device.
fn address(reader: &Reader<'_>, device: &str) -> Found<String> {
    let Some(address) = pci::behind(reader, device)? else { return Ok(None) };
    Ok((!reader.exists(&pci::file(&address, "physfn"))?).then_some(address))
}

fn cards(reader: &Reader<'_>) -> Result<Vec<Card>, String> {
    let mut cards = Vec::new();
    let mut count = 0;
    for name in class(reader, RDMA)? {
        let Some(address) = address(reader, &format!("{RDMA}/{name}/device"))? else { continue };
        let ports = reader.names(&format!("{RDMA}/{name}/ports"))?.unwrap_or_default();
        let mut ports: Vec<u32> = ports.iter().filter_map(|port| port.parse().ok()).collect();
        ports.sort_unstable();
        count += ports.len();
        if count > MOST_PORTS {
            return Err(format!("{RDMA}: it has more than {MOST_PORTS} ports"));
        }
        cards.push(Card { name, address, ports });
    }
    Ok(cards)
}

fn ports(reader: &Reader<'_>, card: &Card) -> Vec<SubjectReadings> {
    let of_card = of_card(reader, card);
    let port = |number: &u32| {
        let folder = format!("{RDMA}/{}/ports/{number}", card.name);
        let layer = reader.parsed(&format!("{folder}/link_layer"), |text| phrase(text).map(str::to_owned));
        let ethernet = matches!(&layer, Ok(Some(layer)) if layer == "Ethernet");
        let counter = |name: &str| counter(reader, &format!("{folder}/counters/{name}"));
        // Cards give 0 for what only InfiniBand counts.
        let of_infiniband = |name: &str| if ethernet { Ok(None) } else { counter(name) };
        let mut readings: Readings = of_card.clone();
        let state =
            |file: &str| reader.parsed(&format!("{folder}/{file}"), |text| numbered(text).map(str::to_owned));
        readings.extend(
            [
                ("ib_state", signal(state("state"))),
                ("ib_phys_state", signal(state("phys_state"))),
                (
                    "ib_rate_gbps",
                    signal(reader.parsed(&format!("{folder}/rate"), |text| measure(text, "Gb/sec"))),
                ),
                ("ib_layer", signal(layer)),
                (
                    "link_downed",
                    // One source for each layer: a counter that changes its source seems to jump.
                    signal(if ethernet { carrier_downs(reader, card) } else { counter("link_downed") }),
                ),
                ("ib_symbol_error", signal(of_infiniband("symbol_error"))),
                ("ib_link_error_recovery", signal(of_infiniband("link_error_recovery"))),
            ]
            .map(|(name, signal)| (name.to_owned(), signal)),
        );
        let id = format!("{}/{number}", card.name);
        SubjectReadings { label: id.clone(), id, readings }
    };
    card.ports.iter().map(port).collect()
}

/// How a port is, as far as the kernel tells.
#[derive(Clone, Debug, PartialEq)]
pub struct PortState {
    pub port: u32,
    /// Such as `ACTIVE`.
    pub state: Option<String>,
    /// Such as `LinkUp`.
    pub phys_state: Option<String>,
    /// In Gbit/s.
    pub rate_gbps: Option<f64>,
    /// `InfiniBand` or `Ethernet`.
    pub layer: Option<String>,
    /// The interface of the port, where the device has a single one or names it.
    pub interface: Option<String>,
}

/// Returns the RDMA devices of cards, without virtual functions and those made of software.
///
/// # Errors
/// If they cannot be listed.
pub fn devices(reader: &Reader<'_>) -> Result<Vec<String>, String> {
    Ok(cards(reader)?.into_iter().map(|card| card.name).collect())
}

/// Returns the ports of an RDMA device; `None` if there is no such device.
///
/// # Errors
/// If they cannot be read.
pub fn states_of(reader: &Reader<'_>, device: &str) -> Found<Vec<PortState>> {
    let Some(names) = reader.names(&format!("{RDMA}/{device}/ports"))? else { return Ok(None) };
    let mut numbers: Vec<u32> = names.iter().filter_map(|port| port.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.truncate(MOST_PORTS);
    let read = |port: u32| {
        let file = |name: &str| format!("{RDMA}/{device}/ports/{port}/{name}");
        Ok(PortState {
            port,
            state: reader.parsed(&file("state"), |text| numbered(text).map(str::to_owned))?,
            phys_state: reader.parsed(&file("phys_state"), |text| numbered(text).map(str::to_owned))?,
            rate_gbps: reader.parsed(&file("rate"), |text| measure(text, "Gb/sec"))?,
            layer: reader.parsed(&file("link_layer"), |text| phrase(text).map(str::to_owned))?,
            interface: interface_of(reader, device, port)?,
        })
    };
    numbers.into_iter().map(read).collect::<Result<_, String>>().map(Some)
}

fn interface_of(reader: &Reader<'_>, device: &str, port: u32) -> Found<String> {
    // A port without any interface refuses the question.
    let named = reader.line(&format!("{RDMA}/{device}/ports/{port}/gid_attrs/ndevs/0")).unwrap_or_default();
    if let Some(name) = named.filter(|name| is_name(name)) {
        return Ok(Some(name));
    }
    let names = reader.names(&format!("{RDMA}/{device}/device/net"))?.unwrap_or_default();
    Ok(match names.as_slice() {
        [only] if is_name(only) => Some(only.clone()),
        _ => None,
    })
}

/// Returns the ports of an RDMA device with what a person asks of them first.
///
/// # Errors
/// If they cannot be read.
pub fn ports_of(reader: &Reader<'_>, device: &str) -> Result<Vec<RdmaPort>, String> {
    let port = |port: PortState| RdmaPort {
        device: device.to_owned(),
        port: port.port,
        state: port.state,
        rate_gbps: port.rate_gbps,
        layer: port.layer,
    };
    Ok(states_of(reader, device)?.unwrap_or_default().into_iter().map(port).collect())
}

/// Reads what all ports of a card have in common.
fn of_card(reader: &Reader<'_>, card: &Card) -> Readings {
    let above = pci::above(reader, &card.address).map(|ports| ports.into_iter().next());
    let width = |address: &str, file: &str| -> Found<u32> {
        let found = reader.number::<u32>(&pci::file(address, file))?;
        Ok(found.filter(|lanes| (1..UNKNOWN_WIDTH).contains(lanes)))
    };
    let speed = |address: &str, file: &str| -> Found<f64> {
        let found = reader.parsed(&pci::file(address, file), |text| match text {
            "Unknown" | "Unknown speed" => Some(None),
            text => measure(text, "GT/s").map(Some),
        });
        Ok(found?.flatten())
    };
    let word = |file: &str| reader.line(&format!("{RDMA}/{}/{file}", card.name)).map(|text| text.map(short));
    [
        ("nic_width", signal(width(&card.address, "current_link_width"))),
        ("nic_width_max", signal(of_both(&card.address, &above, |address| width(address, "max_link_width")))),
        ("nic_speed", signal(speed(&card.address, "current_link_speed"))),
        ("nic_speed_max", signal(of_both(&card.address, &above, |address| speed(address, "max_link_speed")))),
        ("nic_fw", signal(word("fw_ver"))),
        ("nic_board", signal(word("board_id"))),
    ]
    .map(|(name, signal)| (name.to_owned(), signal))
    .into()
}

fn short(text: String) -> String {
    text.chars().take(80).collect()
}

/// Returns the least that card and slot can do: a card may be made for more than the slot that it is in.
fn of_both<T: PartialOrd>(card: &str, above: &Found<String>, read: impl Fn(&str) -> Found<T>) -> Found<T> {
    let Some(own) = read(card)? else { return Ok(None) };
    let Some(slot) = above.clone()? else { return Ok(Some(own)) };
    Ok(Some(match read(&slot)? {
        Some(slot) if slot < own => slot,
        _ => own,
    }))
}

/// Returns how often the only interface of a card lost its link. A card with several leaves open whose port is whose.
fn carrier_downs(reader: &Reader<'_>, card: &Card) -> Found<u64> {
    let names = reader.names(&format!("{RDMA}/{}/device/net", card.name))?.unwrap_or_default();
    match names.as_slice() {
        [name] if is_name(name) && card.ports.len() == 1 => {
            counter(reader, &format!("{NET}/{name}/carrier_down_count"))
        }
        _ => Ok(None),
    }
}

fn counter(reader: &Reader<'_>, path: &str) -> Found<u64> {
    let found = reader.parsed(path, |text| match text {
        NO_COUNTER => Some(None),
        text => digits(text).map(Some),
    });
    Ok(found?.flatten())
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Returns the phrase of `4: ACTIVE`.
fn numbered(text: &str) -> Option<&str> {
    let (number, rest) = text.split_once(": ")?;
    digits(number)?;
    phrase(rest)
}

fn phrase(text: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '<' | '>');
    (!text.is_empty() && text.len() <= 40 && text.chars().all(plain)).then_some(text)
}

/// Returns the number of `400 Gb/sec (4X NDR)` or `32.0 GT/s PCIe`, which is not negative.
fn measure(text: &str, unit: &str) -> Option<f64> {
    let (number, rest) = text.split_once(' ')?;
    let plain = number.len() <= 10 && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let fits = rest == unit || rest.strip_prefix(unit).is_some_and(|rest| rest.starts_with(' '));
    if plain && fits { number.parse().ok() } else { None }
}

fn word<'a>(port: &'a SubjectReadings, name: &str) -> Result<&'a str, String> {
    match port.readings.get(name) {
        Some(Signal::Known(value)) => Ok(value.as_str().unwrap_or_default()),
        Some(Signal::Unknown(why)) => Err(why.clone()),
        Some(Signal::Absent) | None => Ok("not told"),
    }
}

fn is_up(port: &SubjectReadings) -> Result<bool, String> {
    Ok(word(port, "ib_state")? == "ACTIVE" && word(port, "ib_phys_state")? == "LinkUp")
}

fn up(ports: &[SubjectReadings]) -> Found<usize> {
    let up: Vec<bool> = ports.iter().map(is_up).collect::<Result<_, _>>()?;
    Ok(Some(up.into_iter().filter(|up| *up).count()))
}

fn down(ports: &[SubjectReadings]) -> Vec<String> {
    let told = |port: &SubjectReadings, name: &str| {
        word(port, name).map_or_else(|_| "unknown".to_owned(), str::to_owned)
    };
    let down = ports.iter().filter(|port| is_up(port) != Ok(true));
    down.map(|port| format!("{}: {}, {}", port.id, told(port, "ib_state"), told(port, "ib_phys_state")))
        .collect()
}

/// Counts cards that no program can open: those without a file for verbs, and files that `/dev` lacks. Without a
/// class of management files (`umad`) nobody asked for those.
fn missing_files(reader: &Reader<'_>, cards: &[Card]) -> Found<usize> {
    if cards.is_empty() {
        return Ok(None);
    }
    let mut missing = 0;
    let mut with_verbs: Vec<String> = Vec::new();
    for (folder, prefix) in [("/sys/class/infiniband_verbs", "uverbs"), ("/sys/class/infiniband_mad", "umad")]
    {
        for name in class(reader, folder)?.iter().filter(|name| name.starts_with(prefix)) {
            let Some(device) = reader.line(&format!("{folder}/{name}/ibdev"))? else { continue };
            if !cards.iter().any(|card| card.name == device) {
                continue;
            }
            missing += usize::from(!reader.exists(&format!("/dev/infiniband/{name}"))?);
            if prefix == "uverbs" {
                with_verbs.push(device);
            }
        }
    }
    let without = cards.iter().filter(|card| !with_verbs.contains(&card.name)).count();
    Ok(Some(missing + without))
}

/// Returns what is to be said of interfaces of cards, and of bonds, in the order of their names.
fn eth_links(reader: &Reader<'_>) -> Found<Vec<String>> {
    let mut found = Vec::new();
    let mut count = 0;
    for name in class(reader, NET)? {
        let file = |file: &str| format!("{NET}/{name}/{file}");
        let of_card = reader.exists(&file("device"))? && !reader.exists(&file("device/physfn"))?;
        if !of_card && !reader.exists(&file("bonding"))? {
            continue;
        }
        count += 1;
        if count > MOST_LINKS {
            return Err(format!("{NET}: it has more than {MOST_LINKS} interfaces of cards"));
        }
        if reader.line(&file("operstate"))?.as_deref() == Some("up") {
            found.push(format!("{name}:up"));
            // Virtual cards say -1, and a driver that knows no speed refuses the question.
            let speed = reader.parsed(&file("speed"), |text| text.parse::<i64>().ok()).unwrap_or_default();
            found.extend(speed.filter(|speed| *speed > 0).map(|speed| format!("{name}:speed={speed}")));
        }
        found.extend(reader.number::<u32>(&file("mtu"))?.map(|mtu| format!("{name}:mtu={mtu}")));
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel_are_read_strictly() {
        assert_eq!(numbered("4: ACTIVE"), Some("ACTIVE"));
        assert_eq!(numbered("7: Phy Test"), Some("Phy Test"));
        for text in ["", "ACTIVE", "x: ACTIVE", "4: ", "4: A\u{1b}[31m", "-4: ACTIVE"] {
            assert_eq!(numbered(text), None, "{text}");
        }
        assert_eq!(measure("400 Gb/sec (4X NDR)", "Gb/sec"), Some(400.0));
        assert_eq!(measure("2.5 Gb/sec (1X SDR)", "Gb/sec"), Some(2.5));
        assert_eq!(measure("32.0 GT/s PCIe", "GT/s"), Some(32.0));
        for text in ["", "400", "-1 Gb/sec", "inf Gb/sec", "400 Gb/second", "1e9 Gb/sec", "400 GT/s"] {
            assert_eq!(measure(text, "Gb/sec"), None, "{text}");
        }
        assert_eq!((digits("12"), digits("+1"), digits("")), (Some(12), None, None));
        assert!(is_name("mlx5_0") && !is_name("..") && !is_name("a/b") && !is_name(""));
    }
}
