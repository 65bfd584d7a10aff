//! Who is told of every event.

use crate::event::Event;

/// Takes every event of a run. A sink's own trouble never stops the run: it keeps it to itself.
pub trait Sink: Send {
    fn event(&mut self, event: &Event);
    /// Something that an earlier process of the same run recorded.
    fn past(&mut self, _event: &Event) {}
    /// The run is over; what is pending should be shown now.
    fn finish(&mut self) {}
}
