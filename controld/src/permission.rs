//! Permission requests that the agent made and nobody answered.
//!
//! ```text
//!   ask ---> outstanding ---> answered | cancelled | expired (only while an event stream is up)
//! ```
//!
//! While the instance's event stream is down nobody can answer, so nothing expires (S-001.9); each time the stream
//! comes up every outstanding request gets the whole wait afresh (ruling 10).

use std::collections::BTreeMap;
use std::time::Duration;

use seam::Monotonic;
use wire::PermissionId;

/// The outstanding requests of one instance. `A` is the handle through which the agent gets its answer.
#[derive(Debug)]
pub(crate) struct PermissionTable<A> {
    outstanding: BTreeMap<u64, Outstanding<A>>,
    attached: bool,
}

#[derive(Debug)]
struct Outstanding<A> {
    options: Vec<String>,
    answer: A,
    /// None while no event stream is up.
    expires_at: Option<Monotonic>,
}

/// A request that is no longer outstanding.
#[derive(Debug)]
pub(crate) struct Ended<A> {
    pub(crate) permission: PermissionId,
    pub(crate) answer: A,
}

/// Why an answer was not taken. The request, if it is there, stays outstanding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerRefused {
    /// Never asked, or ended.
    #[error("no such permission request is outstanding")]
    Unknown,
    /// It does not offer that.
    #[error("the request has no option {0:?}")]
    NoSuchOption(String),
}

/// The table holds as many requests as it may.
#[derive(Debug)]
pub(crate) struct TooManyOutstanding<A>(pub(crate) A);

impl<A> PermissionTable<A> {
    /// Empty and unattached.
    pub(crate) fn new() -> Self {
        Self { outstanding: BTreeMap::new(), attached: false }
    }

    /// A new request. `number` is never reused in the server's lifetime; the caller draws it.
    pub(crate) fn ask(
        &mut self,
        now: Monotonic,
        number: u64,
        options: Vec<String>,
        answer: A,
    ) -> Result<PermissionId, TooManyOutstanding<A>> {
        if self.outstanding.len() >= OUTSTANDING {
            return Err(TooManyOutstanding(answer));
        }
        let expires_at = self.attached.then(|| now.after(PERMISSION_WAIT));
        let earlier = self.outstanding.insert(number, Outstanding { options, answer, expires_at });
        assert!(earlier.is_none(), "permission numbers are never reused");
        Ok(id(number))
    }

    /// Takes the answer: an option that was offered, or none to cancel.
    pub(crate) fn answer(
        &mut self,
        permission: &PermissionId,
        option: Option<&str>,
    ) -> Result<Ended<A>, AnswerRefused> {
        let number = number(permission).ok_or(AnswerRefused::Unknown)?;
        let outstanding = self.outstanding.get(&number).ok_or(AnswerRefused::Unknown)?;
        if let Some(option) = option
            && !outstanding.options.iter().any(|offered| offered == option)
        {
            return Err(AnswerRefused::NoSuchOption(option.to_owned()));
        }
        let outstanding = self.outstanding.remove(&number).expect("it was just found");
        Ok(Ended { permission: id(number), answer: outstanding.answer })
    }

    /// The event stream came up: every wait starts afresh.
    pub(crate) fn attach(&mut self, now: Monotonic) {
        self.attached = true;
        for outstanding in self.outstanding.values_mut() {
            outstanding.expires_at = Some(now.after(PERMISSION_WAIT));
        }
    }

    /// The event stream is gone: nothing expires any more.
    pub(crate) fn detach(&mut self) {
        self.attached = false;
        for outstanding in self.outstanding.values_mut() {
            outstanding.expires_at = None;
        }
    }

    /// Takes out what has waited its whole time, oldest first.
    pub(crate) fn expire(&mut self, now: Monotonic) -> Vec<Ended<A>> {
        self.take(|outstanding| outstanding.expires_at.is_some_and(|at| at <= now))
    }

    /// Takes out everything: the turn was cancelled or ended, or the instance stops.
    pub(crate) fn cancel_all(&mut self) -> Vec<Ended<A>> {
        self.take(|_| true)
    }

    /// When [`PermissionTable::expire`] next has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        self.outstanding.values().filter_map(|outstanding| outstanding.expires_at).min()
    }

    /// The outstanding requests, oldest first.
    pub(crate) fn outstanding(&self) -> Vec<PermissionId> {
        self.outstanding.keys().copied().map(id).collect()
    }

    fn take(&mut self, mut which: impl FnMut(&Outstanding<A>) -> bool) -> Vec<Ended<A>> {
        self.outstanding
            .extract_if(.., |_, outstanding| which(outstanding))
            .map(|(number, outstanding)| Ended { permission: id(number), answer: outstanding.answer })
            .collect()
    }
}

fn id(number: u64) -> PermissionId {
    PermissionId::new(format!("p{number}"))
}

fn number(permission: &PermissionId) -> Option<u64> {
    let digits = permission.as_str().strip_prefix('p')?;
    let number = digits.parse().ok()?;
    // The one spelling that was handed out, and no other that parses alike (`p+1`, `p01`).
    (id(number) == *permission).then_some(number)
}

/// How long an attached user may think before a request ends as cancelled. Longer than the three silent intervals
/// that detach a dead stream, so that a request never expires in front of a reader that is no longer there.
pub(crate) const PERMISSION_WAIT: Duration = Duration::from_secs(300);

/// An agent with this many open questions is broken; the next ones are answered "cancelled" at once.
pub(crate) const OUTSTANDING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn table_with_one() -> (PermissionTable<&'static str>, PermissionId) {
        let mut table = PermissionTable::new();
        let id = table.ask(at(0), 7, vec!["allow".into(), "deny".into()], "handle").unwrap();
        (table, id)
    }

    #[test]
    fn unattached_a_request_never_expires() {
        let (mut table, id) = table_with_one();
        assert_eq!(None, table.next_deadline());
        assert!(table.expire(at(1_000_000)).is_empty());
        assert_eq!(vec![id], table.outstanding());
    }

    #[test]
    fn the_wait_starts_afresh_each_time_the_stream_comes_up() {
        let (mut table, id) = table_with_one();
        table.attach(at(10));
        assert_eq!(Some(at(310)), table.next_deadline());
        table.detach();
        assert!(table.expire(at(400)).is_empty());
        table.attach(at(500));
        assert!(table.expire(at(799)).is_empty());
        assert_eq!(id, table.expire(at(800))[0].permission);
        assert!(table.expire(at(801)).is_empty());
    }

    #[test]
    fn a_request_made_while_attached_expires_too() {
        let (mut table, _) = table_with_one();
        table.attach(at(10));
        table.ask(at(20), 8, vec![], "second").unwrap();
        table.expire(at(310));
        assert_eq!(Some(at(320)), table.next_deadline());
    }

    #[test]
    fn an_answer_is_taken_once_and_only_if_it_was_offered() {
        let (mut table, id) = table_with_one();
        let refused = table.answer(&id, Some("maybe")).unwrap_err();
        assert_eq!(AnswerRefused::NoSuchOption("maybe".into()), refused);
        assert_eq!("handle", table.answer(&id, Some("allow")).unwrap().answer);
        assert_eq!(AnswerRefused::Unknown, table.answer(&id, Some("allow")).unwrap_err());
    }

    #[test]
    fn only_the_spelling_that_was_handed_out_is_an_id() {
        let (mut table, _) = table_with_one();
        for other in ["p07", "p+7", "7", "p", "P7"] {
            assert_eq!(AnswerRefused::Unknown, table.answer(&PermissionId::new(other), None).unwrap_err());
        }
    }

    #[test]
    fn cancelling_takes_everything_oldest_first() {
        let (mut table, _) = table_with_one();
        table.ask(at(1), 12, vec![], "second").unwrap();
        let ended: Vec<_> = table.cancel_all().into_iter().map(|ended| ended.answer).collect();
        assert_eq!(vec!["handle", "second"], ended);
        assert!(table.cancel_all().is_empty());
    }

    #[test]
    fn a_full_table_hands_the_question_back() {
        let mut table = PermissionTable::new();
        for number in 0..OUTSTANDING as u64 {
            table.ask(at(0), number, vec![], number).unwrap();
        }
        assert_eq!(1000, table.ask(at(0), 1000, vec![], 1000).unwrap_err().0);
        assert_eq!(OUTSTANDING, table.outstanding().len());
    }
}
