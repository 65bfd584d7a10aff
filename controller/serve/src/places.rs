//! The places of connections: how many there are at once, and which ends when another one comes.
//!
//! Invariant: connections that send no request keep nobody waiting. The one that waited longest makes place for the next,
//! and no address has more than half of all places.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;

/// Connections at once; where all of them are at work, more wait.
const CONNECTIONS: usize = 256;
/// Connections of one address at once; a proxy in front has one.
const OF_PEER: usize = CONNECTIONS / 2;

/// All places.
#[derive(Debug, Default)]
pub(crate) struct Places {
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// By when they came.
    held: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    peer: IpAddr,
    /// Requests under way.
    work: usize,
    end: Arc<Notify>,
}

/// Whether a connection has a place.
#[derive(Debug)]
enum Answer {
    Taken(Place),
    /// All connections of this address are at work.
    Refused,
    /// All connections are at work.
    Full,
}

impl Places {
    /// Returns a place for a connection when there is one; `None` where its address has all that it may have.
    pub(crate) async fn take(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        loop {
            let freed = self.freed.notified();
            match self.try_take(peer) {
                Answer::Taken(place) => return Some(place),
                Answer::Refused => return None,
                Answer::Full => freed.await,
            }
        }
    }

    fn try_take(self: &Arc<Self>, peer: IpAddr) -> Answer {
        let mut taken = self.lock();
        let of_peer = taken.held.values().filter(|held| held.peer == peer).count();
        let whole = taken.held.len() >= CONNECTIONS;
        if of_peer >= OF_PEER || whole {
            let may_end = |held: &Held| held.work == 0 && (of_peer < OF_PEER || held.peer == peer);
            let waiting = taken.held.iter().find(|(_, held)| may_end(held)).map(|(id, _)| *id);
            match waiting.and_then(|id| taken.held.remove(&id)) {
                Some(held) => held.end.notify_one(),
                None if of_peer >= OF_PEER => return Answer::Refused,
                None => return Answer::Full,
            }
        }
        let id = taken.next;
        taken.next += 1;
        let end = Arc::new(Notify::new());
        taken.held.insert(id, Held { peer, work: 0, end: Arc::clone(&end) });
        Answer::Taken(Place { places: Arc::clone(self), id, end })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one connection; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    end: Arc<Notify>,
}

impl Place {
    /// Waits until another connection needs this place.
    pub(crate) async fn lost(&self) {
        self.end.notified().await;
    }

    /// Begins a request: until its answer is sent, nobody takes the place.
    pub(crate) fn begin(&self) -> Work {
        if let Some(held) = self.places.lock().held.get_mut(&self.id) {
            held.work += 1;
        }
        Work { places: Arc::clone(&self.places), id: self.id }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().held.remove(&self.id);
        self.places.freed.notify_one();
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Work {
    places: Arc<Places>,
    id: u64,
}

impl Work {
    /// Goes on until a body is sent.
    pub(crate) fn until_sent(self, body: Body) -> Body {
        Body::new(Sent { body, _work: self })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(held) = self.places.lock().held.get_mut(&self.id) {
            held.work = held.work.saturating_sub(1);
        }
        // Who waits for a place may have this one now.
        self.places.freed.notify_one();
    }
}

struct Sent {
    body: Body,
    _work: Work,
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn taken(places: &Arc<Places>, last: u8) -> Option<Place> {
        match places.try_take(peer(last)) {
            Answer::Taken(place) => Some(place),
            Answer::Refused | Answer::Full => None,
        }
    }

    fn is_lost(place: &Place) -> bool {
        !place.places.lock().held.contains_key(&place.id)
    }

    #[test]
    fn one_that_waits_makes_place_for_the_next_of_its_address() {
        let places = Arc::new(Places::default());
        let idle: Vec<Place> = (0..OF_PEER).map(|_| taken(&places, 1).unwrap()).collect();
        let next = taken(&places, 1).unwrap();
        assert!(is_lost(&idle[0]) && !is_lost(&idle[1]) && !is_lost(&next));
        let other = taken(&places, 2).unwrap();
        assert!(!is_lost(&idle[1]) && !is_lost(&other), "there is room for other addresses");
    }

    #[test]
    fn requests_under_way_keep_their_place() {
        let places = Arc::new(Places::default());
        let busy: Vec<(Place, Work)> = (0..OF_PEER)
            .map(|_| {
                let place = taken(&places, 1).unwrap();
                let work = place.begin();
                (place, work)
            })
            .collect();
        assert!(matches!(places.try_take(peer(1)), Answer::Refused));
        let idle: Vec<Place> = (0..OF_PEER).map(|at| taken(&places, 2 + (at % 2) as u8).unwrap()).collect();
        let next = taken(&places, 4).unwrap();
        assert!(is_lost(&idle[0]) && busy.iter().all(|(place, _)| !is_lost(place)));
        let _works: Vec<Work> = idle.iter().map(Place::begin).chain([next.begin()]).collect();
        assert!(matches!(places.try_take(peer(5)), Answer::Full));
        drop(busy);
        assert!(taken(&places, 5).is_some());
    }
}
