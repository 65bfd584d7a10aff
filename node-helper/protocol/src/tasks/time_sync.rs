//! Parameters of `time_sync`, who keeps the clock right.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, words::words,
};
use crate::{
    Disruption, NodeOp, Unit, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { TimeDaemon {
    Chrony: "chrony",
    Timesyncd: "timesyncd" | "systemd-timesyncd",
    Ntpd: "ntpd",
    /// phc2sys or timemaster, by PTP.
    Ptp: "ptp" | "phc2sys" | "timemaster",
} }

/// Checks that the clock is kept right by one daemon, and declares its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TimeSync {
    /// The daemon that has to run; any one by default. It is not installed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<TimeDaemon>,
    /// Names or addresses of the servers that chrony or systemd-timesyncd ask; without it, servers are left alone.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
    /// The clock may be this far from that of the servers.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub max_offset_ms: Option<u32>,
}

impl TimeSync {
    /// The file of systemd-timesyncd.
    pub const TIMESYNCD: &str = "/etc/systemd/timesyncd.conf.d/90-gpufleet.conf";
    /// The name of the file of chrony, in its folder of sources.
    pub const SOURCES: &str = "gpufleet.sources";

    /// Whether two names or addresses are those of one server, as they are written.
    pub fn same_server(one: &str, other: &str) -> bool {
        let address = |name: &str| name.parse::<IpAddr>().ok();
        one.eq_ignore_ascii_case(other) || address(one).is_some_and(|one| Some(one) == address(other))
    }
}

impl Kind for TimeSync {
    const INFO: KindInfo = KindInfo {
        name: "time_sync",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("max_offset_ms", Some(Unit::Milliseconds), 1)],
        since: &[],
        summary: "Checks that one daemon keeps the clock right, and declares the servers that it asks.",
        example: "time_sync: {servers: [ntp1.example, ntp2.example], max_offset_ms: 10}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        let wrong = |name: &&String| {
            name.is_empty() || name.len() > 253 || name.starts_with('-') || !name.bytes().all(plain)
        };
        if let Some(name) = self.servers.iter().find(wrong) {
            return Err(ParamError::new("servers", format!("`{name}` is neither a name nor an address")));
        }
        let is_twice = |(at, name): &(usize, &String)| {
            self.servers.iter().take(*at).any(|other| Self::same_server(other, name))
        };
        if let Some((_, name)) = self.servers.iter().enumerate().find(is_twice) {
            let message = format!("`{name}` is there twice, and a daemon would ask it once");
            return Err(ParamError::new("servers", message));
        }
        if self.daemon == Some(TimeDaemon::Ptp) && !self.servers.is_empty() {
            let message = "with PTP a grandmaster announces itself, and no server is asked";
            return Err(ParamError::new("servers", message));
        }
        if self.daemon == Some(TimeDaemon::Ntpd) && !self.servers.is_empty() {
            let message =
                "ntpd reads no files beside ntp.conf: `template` or `lineinfile` declares its servers";
            return Err(ParamError::new("servers", message));
        }
        Ok(())
    }
}

impl GroundKind for TimeSync {
    const GROUND: Ground = Ground {
        reads: &[
            "timedatectl show: whether the kernel's clock is synchronised, by whatever daemon",
            "which of chrony, systemd-timesyncd, ntpd, phc2sys, ptp4l and timemaster run, and start at boot; their arguments, which tell \
             whether they steer the clock (chronyd -x does not; phc2sys -a without -r, and -E ntpshm)",
            "chronyc tracking and sources; timedatectl show-timesync and timesync-status; ntpq",
            "/etc/chrony/chrony.conf or /etc/chrony.conf, and what it includes; drop-ins of timesyncd.conf",
        ],
        writes: &[
            "for chrony, gpufleet.sources in its folder of sources (sourcedir); a line `sourcedir` in chrony.conf where there is \
             none below /etc (/etc/chrony/sources.d beside /etc/chrony/chrony.conf, else /etc/chrony.sources.d)",
            "for systemd-timesyncd, /etc/systemd/timesyncd.conf.d/90-gpufleet.conf",
        ],
        takes_effect: "at once: chrony reads its sources again, systemd-timesyncd is restarted; the clock is not set by hand",
        survives: "reboots",
        owners: &[
            "two daemons at once would both steer the clock: a failure",
            "ptp4l keeps the clock of a card, from which phc2sys or chrony (refclock PHC) takes the time: no second daemon",
            "servers of chrony.conf, of files that it includes and of DHCP count beside those declared, and are named; \
             systemd-timesyncd prefers servers of a link that systemd-networkd has by DHCP",
            "a later drop-in of timesyncd.conf with NTP=, as cloud-init writes it: refused",
            "in containers the clock is the host's: not applicable",
        ],
        source: "adjtimex(2), timedatectl(1), timesyncd.conf(5); chrony.conf(5), chronyc(1) 4.0 and later; ptp4l(8), phc2sys(8), \
                 timemaster(8)",
    };
}

impl Operation for TimeSync {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        match self.servers.is_empty() {
            true => Reach::Nothing,
            false => {
                Reach::places([Self::TIMESYNCD, "/etc/chrony", "/etc/chrony.conf", "/etc/chrony.sources.d"])
            }
        }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::TimeSync(new) = newer.op else { return true };
        if !new.servers.is_empty() {
            self.servers.clear();
        }
        if new.max_offset_ms.is_some() {
            self.max_offset_ms = None;
        }
        if new.daemon.is_some() {
            self.daemon = None;
        }
        *self != Self::default()
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<TimeSync, ParamError> {
        let task: TimeSync = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn servers_are_names_and_go_where_a_daemon_reads_them() {
        assert!(read(json!({"servers": ["ntp1.example", "2001:db8::1", "10.0.0.1"]})).is_ok());
        for wrong in [
            json!({"servers": "a b"}),
            json!({"servers": "-h"}),
            json!({"servers": "a\nkeyfile /x"}),
            json!({"servers": "a", "daemon": "ntpd"}),
            json!({"servers": "a", "daemon": "ptp"}),
            json!({"servers": ["a", "b", "A"]}),
            json!({"servers": ["2001:db8::1", "2001:DB8:0::1"]}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
        let mut old = read(json!({"servers": "a", "max_offset_ms": 5})).unwrap();
        let newer = |value| NodeOp::TimeSync(read(value).unwrap());
        assert!(old.yields(&Newer::of(&newer(json!({"servers": "b"})))));
        assert!(!old.yields(&Newer::of(&newer(json!({"max_offset_ms": 9})))));
    }
}
