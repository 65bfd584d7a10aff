//! What one line of a journal holds: an event, or what only a resume reads.

use gpufleet_protocol::Disruption;
use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, IntoDeserializer as _, MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::{
    event::{Event, What},
    index::PlayIndex,
    interpreter::Fed,
    rollout::{Input, SoFar},
};

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Counts the records of a journal from 0, without gaps.
    pub seq: u64,
    pub at: Timestamp,
    pub what: Entry,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "most records are events, and a box for each would cost more")]
pub enum Entry {
    /// For everyone who follows the run.
    Event(What),
    /// For a resume alone.
    Replay(Replayed),
}

/// What leads both cores to where an earlier process left them. Its shape is the journal's own business: screens, reports
/// and programs never see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event", content = "with")]
pub enum Replayed {
    /// What earlier plays had left behind when a play began; stands behind the event of its start.
    PlayBeganWith { play: PlayIndex, so_far: SoFar },
    /// What the prediction of a play said of a node.
    NodePredicted {
        host: String,
        play: PlayIndex,
        class: Disruption,
        /// One reboot will serve the resets too.
        one_reboot: bool,
    },
    /// A node's turn in a play.
    NodeBegan { host: String, play: PlayIndex, one_reboot: bool },
    /// What a node's cursor was told.
    Fed {
        host: String,
        play: PlayIndex,
        /// The operation that it answers, as an [`OpId`](crate::event::OpId) is written; at a barrier the path of the task
        /// behind it, and empty for a latch.
        op_id: String,
        /// None where it is secret: that lies in the run's sealed file.
        fed: Option<Box<Fed>>,
        secret: bool,
    },
    /// What the rollout was told.
    Rollout { play: PlayIndex, now: Timestamp, input: Input },
}

impl Replayed {
    /// The kinds of these records, as a line names them.
    const KINDS: [&str; 5] = ["play_began_with", "node_predicted", "node_began", "fed", "rollout"];
}

impl Record {
    /// The event, where it is one.
    pub fn into_event(self) -> Option<Event> {
        let Self { seq, at, what } = self;
        match what {
            Entry::Event(what) => Some(Event { seq, at, what }),
            Entry::Replay(_) => None,
        }
    }
}

impl From<Event> for Record {
    fn from(Event { seq, at, what }: Event) -> Self {
        Self { seq, at, what: Entry::Event(what) }
    }
}

impl From<What> for Entry {
    fn from(what: What) -> Self {
        Self::Event(what)
    }
}

impl From<Replayed> for Entry {
    fn from(replayed: Replayed) -> Self {
        Self::Replay(replayed)
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Event(what) => what.serialize(to),
            Self::Replay(replayed) => replayed.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EntryVisitor)
    }
}

/// The key under which an entry names its kind. Both sorts of entries write it first.
const KIND: &str = "event";

/// Reads the kind, and by it the rest.
///
/// Why not `untagged`: that would keep a copy of every result in memory, and say nothing of what is wrong with a line.
struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a record that names its kind first")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let key: Option<String> = map.next_key()?;
        if key.as_deref() != Some(KIND) {
            return Err(de::Error::missing_field(KIND));
        }
        let kind: String = map.next_value()?;
        let is_replayed = Replayed::KINDS.contains(&kind.as_str());
        let whole = MapAccessDeserializer::new(KindFirst { kind: Some(kind), is_key: true, rest: map });
        match is_replayed {
            true => Replayed::deserialize(whole).map(Entry::Replay),
            false => What::deserialize(whole).map(Entry::Event),
        }
    }
}

/// A map whose first entry was taken out to be looked at, as it was.
struct KindFirst<A> {
    kind: Option<String>,
    /// The key of that entry is still to come.
    is_key: bool,
    rest: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KindFirst<A> {
    type Error = A::Error;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        if std::mem::take(&mut self.is_key) {
            return seed.deserialize(KIND.into_deserializer()).map(Some);
        }
        self.rest.next_key_seed(seed)
    }

    fn next_value_seed<V: de::DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        match self.kind.take() {
            Some(kind) => seed.deserialize(kind.into_deserializer()),
            None => self.rest.next_value_seed(seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Level;

    fn replayed() -> [Replayed; 5] {
        let (host, play) = ("gpu001".to_owned(), PlayIndex(1));
        [
            Replayed::PlayBeganWith { play, so_far: SoFar::default() },
            Replayed::NodePredicted { host: host.clone(), play, class: Disruption::Reboot, one_reboot: true },
            Replayed::NodeBegan { host: host.clone(), play, one_reboot: false },
            Replayed::Fed { host, play, op_id: String::new(), fed: Some(Box::new(Fed::Done)), secret: false },
            Replayed::Rollout { play, now: Timestamp::UNIX_EPOCH, input: Input::Begin },
        ]
    }

    #[test]
    fn what_is_written_is_read_as_what_it_was() {
        let notice = What::Notice { level: Level::Info, text: "fed".to_owned() };
        let entries = replayed().map(Entry::from).into_iter().chain([notice.into()]);
        for (seq, what) in (0..).zip(entries) {
            let record = Record { seq, at: Timestamp::UNIX_EPOCH, what };
            let line = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
            let is_event = matches!(record.what, Entry::Event(_));
            assert_eq!(serde_json::from_str::<Event>(&line).ok(), record.clone().into_event(), "{line}");
            assert_eq!(record.into_event().is_some(), is_event);
        }
    }

    #[test]
    fn the_kinds_are_those_that_are_written() {
        let kinds = replayed().map(|replayed| {
            let written = serde_json::to_value(&replayed).unwrap();
            written[KIND].as_str().unwrap_or_default().to_owned()
        });
        assert_eq!(kinds, Replayed::KINDS);
    }

    #[test]
    fn what_is_no_record_says_why() {
        let read = |what: &str| {
            let line = format!(r#"{{"seq":0,"at":"1970-01-01T00:00:00Z","what":{what}}}"#);
            serde_json::from_str::<Record>(&line).unwrap_err().to_string()
        };
        let unknown = read(r#"{"event":"of_tomorrow","with":{}}"#);
        assert!(unknown.starts_with("unknown variant `of_tomorrow`"), "{unknown}");
        let lacks = read(r#"{"event":"node_began","with":{"host":"a","play":0}}"#);
        assert!(lacks.starts_with("missing field `one_reboot`"), "{lacks}");
        assert!(read(r#"{"with":{},"event":"fed"}"#).starts_with("missing field `event`"));
        assert!(read("{}").starts_with("missing field `event`"));
        assert!(read("1").contains("a record that names its kind first"));
    }
}
