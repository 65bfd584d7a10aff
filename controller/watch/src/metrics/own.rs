//! The watcher's own families.

use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Registry, Unit},
};

type Number = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSchedule {
    schedule: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAudit {
    schedule: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfChannel {
    channel: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDelivery {
    channel: String,
    result: &'static str,
}

/// How an audit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditResult {
    Reported,
    /// It gave no report.
    Failed,
}

impl AuditResult {
    const fn word(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Failed => "failed",
        }
    }
}

/// Families of schedules.
#[derive(Debug, Default)]
struct Schedules {
    audits: Family<OfAudit, Counter>,
    skipped: Family<OfSchedule, Counter>,
    missed: Family<OfSchedule, Counter>,
    running: Family<OfSchedule, Gauge>,
    failing: Family<OfSchedule, Gauge>,
    exit_code: Family<OfSchedule, Gauge>,
    last: Family<OfSchedule, Number>,
    next: Family<OfSchedule, Number>,
    duration: Family<OfSchedule, Number>,
    longest_gap: Family<OfSchedule, Number>,
}

/// The watcher's own metrics.
#[derive(Debug)]
pub struct Own {
    registry: Registry,
    schedules: Schedules,
    deliveries: Family<OfDelivery, Counter>,
    waiting: Family<OfChannel, Gauge>,
    reload_ok: Gauge,
    reload: Number,
}

impl Own {
    pub fn new(version: &str, started: Timestamp) -> Self {
        let mut registry = Registry::with_prefix("gpufleet_watch");
        let all = Schedules::default();
        let own = &mut registry;
        own.register("build", "The release that watches", Info::new([("version", version.to_owned())]));
        own.register("audits", "Audits that ended, with or without a report", all.audits.clone());
        own.register(
            "audits_skipped",
            "Audits that were left out because the one before still ran",
            all.skipped.clone(),
        );
        own.register(
            "audits_missed",
            "Audits that were due while the machine or the watcher was down, and were not made up for",
            all.missed.clone(),
        );
        own.register("audit_running", "Whether an audit runs now", all.running.clone());
        own.register("audit_failing", "Whether the last audit gave no report", all.failing.clone());
        own.register(
            "last_audit_exit_code",
            "Exit code of the last audit that reported",
            all.exit_code.clone(),
        );
        let seconds = |own: &mut Registry, name: &str, help: &str, family: &Family<OfSchedule, Number>| {
            own.register_with_unit(name, help, Unit::Seconds, family.clone());
        };
        seconds(own, "last_audit_timestamp", "When the last audit that reported ended", &all.last);
        seconds(own, "next_audit_timestamp", "When the next audit is due", &all.next);
        seconds(own, "last_audit_duration", "How long the last audit that reported took", &all.duration);
        seconds(
            own,
            "longest_interval",
            "The longest time between two audits that is planned",
            &all.longest_gap,
        );
        let deliveries = Family::default();
        own.register("notifications", "Tries to deliver notifications", Family::clone(&deliveries));
        let waiting = Family::default();
        own.register(
            "notifications_waiting",
            "Notifications that are not delivered yet",
            Family::clone(&waiting),
        );
        let reload_ok = Gauge::default();
        own.register(
            "config_last_reload_successful",
            "Whether the last reading of the configuration succeeded",
            reload_ok.clone(),
        );
        let reload = Number::default();
        own.register_with_unit(
            "config_last_reload_success_timestamp",
            "When the configuration in force was read",
            Unit::Seconds,
            reload.clone(),
        );
        let start = Number::default();
        start.set(seconds_of(started));
        own.register_with_unit("start_timestamp", "When the watcher started", Unit::Seconds, start);
        Self { registry, schedules: all, deliveries, waiting, reload_ok, reload }
    }

    /// Begins the families of a schedule, so that they are there before its first audit.
    pub fn schedule(&self, name: &str, longest_gap_s: u64) {
        let of = || of(name);
        let all = &self.schedules;
        for result in [AuditResult::Reported, AuditResult::Failed] {
            drop(all.audits.get_or_create(&OfAudit { schedule: name.to_owned(), result: result.word() }));
        }
        drop(all.skipped.get_or_create(&of()));
        drop(all.missed.get_or_create(&of()));
        drop(all.running.get_or_create(&of()));
        drop(all.failing.get_or_create(&of()));
        #[expect(clippy::cast_precision_loss, reason = "no interval has that many seconds")]
        all.longest_gap.get_or_create(&of()).set(longest_gap_s as f64);
    }

    /// Ends the families of a schedule that is no more.
    pub fn forget_schedule(&self, name: &str) {
        let all = &self.schedules;
        for result in [AuditResult::Reported, AuditResult::Failed] {
            all.audits.remove(&OfAudit { schedule: name.to_owned(), result: result.word() });
        }
        for family in [&all.skipped, &all.missed] {
            family.remove(&of(name));
        }
        for family in [&all.running, &all.failing, &all.exit_code] {
            family.remove(&of(name));
        }
        for family in [&all.last, &all.next, &all.duration, &all.longest_gap] {
            family.remove(&of(name));
        }
    }

    pub fn channel(&self, name: &str) {
        for result in ["sent", "retried", "given_up"] {
            drop(self.deliveries.get_or_create(&OfDelivery { channel: name.to_owned(), result }));
        }
        self.waiting(name, 0);
    }

    pub fn forget_channel(&self, name: &str) {
        for result in ["sent", "retried", "given_up"] {
            self.deliveries.remove(&OfDelivery { channel: name.to_owned(), result });
        }
        self.waiting.remove(&OfChannel { channel: name.to_owned() });
    }

    /// An audit began.
    pub fn begun(&self, schedule: &str, missed: u32) {
        self.schedules.running.get_or_create(&of(schedule)).set(1);
        self.schedules.missed.get_or_create(&of(schedule)).inc_by(u64::from(missed));
    }

    pub fn skipped(&self, schedule: &str) {
        self.schedules.skipped.get_or_create(&of(schedule)).inc();
    }

    pub fn ended(&self, schedule: &str, result: AuditResult) {
        let all = &self.schedules;
        all.running.get_or_create(&of(schedule)).set(0);
        all.audits.get_or_create(&OfAudit { schedule: schedule.to_owned(), result: result.word() }).inc();
        self.failing(schedule, result == AuditResult::Failed);
    }

    /// Whether the last audit gave no report.
    pub fn failing(&self, schedule: &str, failing: bool) {
        self.schedules.failing.get_or_create(&of(schedule)).set(failing.into());
    }

    /// What the last audit that reported was.
    pub fn last(&self, schedule: &str, ended: Timestamp, seconds: f64, exit_code: i32) {
        let all = &self.schedules;
        all.last.get_or_create(&of(schedule)).set(seconds_of(ended));
        all.duration.get_or_create(&of(schedule)).set(seconds);
        all.exit_code.get_or_create(&of(schedule)).set(exit_code.into());
    }

    pub fn next(&self, schedule: &str, due: Timestamp) {
        self.schedules.next.get_or_create(&of(schedule)).set(seconds_of(due));
    }

    /// One try to deliver: `sent`, `retried` or `given_up`.
    pub fn delivery(&self, channel: &str, result: &'static str) {
        self.deliveries.get_or_create(&OfDelivery { channel: channel.to_owned(), result }).inc();
    }

    pub fn waiting(&self, channel: &str, count: usize) {
        let gauge = self.waiting.get_or_create(&OfChannel { channel: channel.to_owned() });
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The configuration was read, or could not be.
    pub fn reloaded(&self, ok: bool, now: Timestamp) {
        self.reload_ok.set(ok.into());
        if ok {
            self.reload.set(seconds_of(now));
        }
    }

    /// Returns them as OpenMetrics.
    pub fn encode(&self) -> String {
        let mut all = String::new();
        // Writing to a text cannot fail.
        let _ = text::encode(&mut all, &self.registry);
        all
    }
}

fn of(schedule: &str) -> OfSchedule {
    OfSchedule { schedule: schedule.to_owned() }
}

fn seconds_of(time: Timestamp) -> f64 {
    time.as_duration().as_secs_f64()
}
