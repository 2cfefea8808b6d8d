//! The ownership against a reference model: plain lists, slow, obviously right.
//!
//! Three backends do anything, at any moment, with anything they have seen: shake hands, rotate, lose the reply,
//! confirm any id, claim, open streams with an admission of long ago, ask for the shutdown. Time passes, often right
//! up to the expiry; readings of the clock arrive late; ticks come early, late and twice. After every step the answer
//! is the model's, and so is what every credential ever made may do, the deadline and the open streams; four facts are
//! held against the ownership without the model.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use seam::Monotonic;
use secrecy::SecretString;
use wire::{Credential, RotationId};

use crate::access::Access;
use crate::ownership::{AdmissionRefused, Admitted, Ownership, ShutdownReason};
use crate::stream_fencing::StreamId;

/// What the world does next. Choices are numbers; the model turns them into what exists at that moment.
#[derive(Clone, Debug)]
struct Transition {
    backend: usize,
    /// How many seconds old the clock's reading is when it arrives.
    late: u64,
    deed: Deed,
}

#[derive(Clone, Debug)]
enum Deed {
    Handshake { right_nonce: bool, reply_lost: bool },
    Rotate { with: Choice, reply_lost: bool },
    Confirm { with: Choice, id: u64 },
    Claim { with: Choice },
    Admit { with: Choice, driver_route: bool },
    OpenStream { admission: usize },
    StillDrives { admission: usize },
    StreamEnds { stream: usize },
    AskToShutDown { with: Choice },
    Signal,
    Pass { seconds: u64 },
    PassToExpiry { minus: u64 },
    Tick { early: u64 },
}

/// Which credential is presented.
#[derive(Clone, Debug)]
enum Choice {
    /// One that this backend got a reply with, so many before its newest.
    Seen(usize),
    /// One that was ever issued, so many rotations before the newest, though its reply may have been lost.
    Issued(usize),
    /// One that was ever made, also in vain, so many before the last.
    Made(usize),
    /// One that nobody made.
    Stranger,
    Missing,
}

/// Credentials are numbers here; 0 is the stranger's.
type Token = u32;

#[derive(Clone, Debug)]
struct Model {
    now: u64,
    nonce_used: bool,
    /// How many credentials were made, in vain or not.
    made: Token,
    /// The issued ones: the index is the rotation.
    issued: Vec<Token>,
    /// Every id whose confirmation was accepted, as often as it was.
    confirmed: Vec<u64>,
    /// Every instant at which ownership was renewed; the first is the process's start.
    renewals: Vec<u64>,
    shutdowns: Vec<ShutdownReason>,
    streams: Vec<ModelStream>,
    admissions: Vec<Admitted>,
    seen: [Vec<Token>; BACKENDS],
    /// What the last transition came to.
    last: Option<(Operation, Answer)>,
}

#[derive(Clone, Debug)]
struct ModelStream {
    rotation: u64,
    over: bool,
}

/// A transition with everything chosen.
#[derive(Clone, Debug)]
enum Operation {
    Handshake { at: u64, right_nonce: bool, fresh: Token },
    Rotate { at: u64, with: Option<Token>, fresh: Token },
    Confirm { at: u64, with: Option<Token>, id: u64 },
    Claim { at: u64, with: Option<Token> },
    Admit { at: u64, with: Option<Token>, access: Access },
    OpenStream { at: u64, admitted: Admitted },
    StillDrives { at: u64, admitted: Admitted },
    StreamEnds { stream: usize },
    AskToShutDown { at: u64, with: Option<Token> },
    Signal { at: u64 },
    Tick { at: u64 },
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Credential(Token),
    Replacement { id: u64, credential: Token, replayed: bool, fenced: Vec<usize> },
    Confirmed(bool),
    Admitted(Admitted),
    Shutdown(Option<ShutdownReason>),
    Refused(AdmissionRefused),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum May {
    Everything,
    OnlyAdopt,
    Nothing,
}

impl Model {
    fn new() -> Self {
        Self {
            now: START,
            nonce_used: false,
            made: 0,
            issued: vec![],
            confirmed: vec![],
            renewals: vec![START],
            shutdowns: vec![],
            streams: vec![],
            admissions: vec![],
            seen: [vec![], vec![], vec![]],
            last: None,
        }
    }

    fn newest(&self) -> u64 {
        self.issued.len() as u64 - 1
    }

    /// O-002.8, read off the lists.
    fn may(&self, token: Option<Token>) -> May {
        let Some(rotation) = self.issued.iter().position(|issued| Some(*issued) == token) else {
            return May::Nothing;
        };
        let rotation = rotation as u64;
        if rotation == self.newest() {
            May::Everything
        } else if rotation + 1 == self.newest() && !self.confirmed.contains(&self.newest()) {
            May::OnlyAdopt
        } else {
            May::Nothing
        }
    }

    fn expires_at(&self) -> u64 {
        self.renewals.iter().max().expect("the start is in the list") + PERIOD
    }

    fn judge_age(&mut self, at: u64) {
        if self.shutdowns.is_empty() && at >= self.expires_at() {
            self.shutdowns.push(ShutdownReason::Unowned);
        }
    }

    fn going_down(&self) -> Result<(), AdmissionRefused> {
        if self.shutdowns.is_empty() { Ok(()) } else { Err(AdmissionRefused::ShuttingDown) }
    }

    fn superseded(&self) -> AdmissionRefused {
        AdmissionRefused::CredentialSuperseded { latest: RotationId(self.newest()) }
    }

    fn drives(&self, with: Option<Token>) -> Result<(), AdmissionRefused> {
        match self.may(with) {
            May::Nothing => Err(AdmissionRefused::Unauthorized),
            May::OnlyAdopt => Err(self.superseded()),
            May::Everything => self.going_down(),
        }
    }

    fn still_drives(&self, admitted: Admitted) -> Result<(), AdmissionRefused> {
        match admitted {
            _ if self.issued.is_empty() => Err(AdmissionRefused::Unauthorized),
            Admitted::Anybody => Err(AdmissionRefused::Unauthorized),
            Admitted::Driver(rotation) if rotation.0 == self.newest() => self.going_down(),
            Admitted::Driver(_) | Admitted::Adopter(_) => Err(self.superseded()),
        }
    }

    fn resolve(&mut self, transition: &Transition) -> Operation {
        let at = self.now.saturating_sub(transition.late);
        let chosen = |model: &Self, choice: &Choice| match *choice {
            // A backend that got no reply yet knows what the installation's secret store knows.
            Choice::Seen(back) => match &model.seen[transition.backend] {
                seen if seen.is_empty() => Some(model.issued.last().copied().unwrap_or(STRANGER)),
                seen => Some(seen[seen.len() - 1 - back.min(seen.len() - 1)]),
            },
            Choice::Issued(back) => Some(model.issued.iter().rev().nth(back).copied().unwrap_or(STRANGER)),
            Choice::Made(back) => Some(model.made.saturating_sub(back as Token)),
            Choice::Stranger => Some(STRANGER),
            Choice::Missing => None,
        };
        let admission = |model: &Self, back: usize| {
            model.admissions.iter().rev().nth(back.min(model.admissions.len().saturating_sub(1))).copied()
        };
        match &transition.deed {
            Deed::Handshake { right_nonce, .. } => {
                self.made += 1;
                Operation::Handshake { at, right_nonce: *right_nonce, fresh: self.made }
            }
            Deed::Rotate { with, .. } => {
                let with = chosen(self, with);
                self.made += 1;
                Operation::Rotate { at, with, fresh: self.made }
            }
            Deed::Confirm { with, id } => {
                // Counted down from one that was never issued.
                let id = (self.issued.len() as u64).saturating_sub(*id);
                Operation::Confirm { at, with: chosen(self, with), id }
            }
            Deed::Claim { with } => Operation::Claim { at, with: chosen(self, with) },
            Deed::Admit { with, driver_route } => {
                let access = if *driver_route { Access::Driver } else { Access::AdoptionOnly };
                Operation::Admit { at, with: chosen(self, with), access }
            }
            Deed::OpenStream { admission: back } => {
                Operation::OpenStream { at, admitted: admission(self, *back).unwrap_or(Admitted::Anybody) }
            }
            Deed::StillDrives { admission: back } => {
                Operation::StillDrives { at, admitted: admission(self, *back).unwrap_or(Admitted::Anybody) }
            }
            Deed::StreamEnds { .. } if self.streams.is_empty() => Operation::Nothing,
            Deed::StreamEnds { stream } => {
                Operation::StreamEnds { stream: self.streams.len() - 1 - stream % self.streams.len() }
            }
            Deed::AskToShutDown { with } => Operation::AskToShutDown { at, with: chosen(self, with) },
            Deed::Signal => Operation::Signal { at },
            Deed::Pass { seconds } => {
                self.now += seconds;
                Operation::Nothing
            }
            Deed::PassToExpiry { minus } => {
                self.now = self.now.max(self.expires_at().saturating_sub(*minus));
                Operation::Nothing
            }
            Deed::Tick { early } => Operation::Tick { at: self.now.saturating_sub(*early) },
        }
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<Answer, AdmissionRefused> {
        match *operation {
            Operation::Handshake { at, right_nonce, fresh } => {
                self.judge_age(at);
                self.going_down()?;
                if !right_nonce || self.nonce_used {
                    return Err(AdmissionRefused::HandshakeRefused);
                }
                self.nonce_used = true;
                self.issued.push(fresh);
                self.renewals.push(at);
                Ok(Answer::Credential(fresh))
            }
            Operation::Rotate { at, with, fresh } => {
                self.judge_age(at);
                let may = self.may(with);
                if may == May::Nothing {
                    return Err(AdmissionRefused::Unauthorized);
                }
                self.going_down()?;
                self.renewals.push(at);
                if may == May::Everything {
                    self.issued.push(fresh);
                }
                let newest = self.newest();
                let mut fenced = vec![];
                for (number, stream) in self.streams.iter_mut().enumerate() {
                    if !stream.over && stream.rotation != newest {
                        stream.over = true;
                        fenced.push(number);
                    }
                }
                let credential = *self.issued.last().expect("somebody may rotate it");
                Ok(Answer::Replacement { id: newest, credential, replayed: may == May::OnlyAdopt, fenced })
            }
            Operation::Confirm { at, with, id } => {
                self.judge_age(at);
                self.drives(with)?;
                if id > self.newest() {
                    return Err(AdmissionRefused::UnknownRotation(RotationId(id)));
                }
                let took_effect = id == self.newest() && id > 0 && !self.confirmed.contains(&id);
                self.confirmed.push(id);
                Ok(Answer::Confirmed(took_effect))
            }
            Operation::Claim { at, with } => {
                self.judge_age(at);
                self.drives(with)?;
                self.renewals.push(at);
                Ok(Answer::Done)
            }
            Operation::Admit { at, with, access } => {
                self.judge_age(at);
                let admitted = match (access, self.may(with)) {
                    (Access::Driver, _) => {
                        self.drives(with).map(|()| Admitted::Driver(RotationId(self.newest())))?
                    }
                    (_, May::Nothing) => return Err(AdmissionRefused::Unauthorized),
                    (_, May::OnlyAdopt) => Admitted::Adopter(RotationId(self.newest())),
                    (_, May::Everything) => Admitted::Driver(RotationId(self.newest())),
                };
                self.admissions.push(admitted);
                Ok(Answer::Admitted(admitted))
            }
            Operation::OpenStream { at, admitted } => {
                self.judge_age(at);
                self.still_drives(admitted)?;
                self.streams.push(ModelStream { rotation: self.newest(), over: false });
                Ok(Answer::Done)
            }
            Operation::StillDrives { at, admitted } => {
                self.judge_age(at);
                self.still_drives(admitted)?;
                Ok(Answer::Done)
            }
            Operation::StreamEnds { stream } => {
                self.streams[stream].over = true;
                Ok(Answer::Done)
            }
            Operation::AskToShutDown { at, with } => {
                self.judge_age(at);
                if self.may(with) == May::Nothing {
                    return Err(AdmissionRefused::Unauthorized);
                }
                self.shutdowns.push(ShutdownReason::Asked);
                Ok(Answer::Shutdown(self.shutdowns.first().copied()))
            }
            Operation::Signal { at } => {
                self.judge_age(at);
                self.shutdowns.push(ShutdownReason::Signalled);
                Ok(Answer::Shutdown(self.shutdowns.first().copied()))
            }
            Operation::Tick { at } => {
                self.judge_age(at);
                Ok(Answer::Shutdown(self.shutdowns.first().copied()))
            }
            Operation::Nothing => Ok(Answer::Done),
        }
    }

    /// A reply that arrives teaches its backend the credential in it.
    fn hear(&mut self, transition: &Transition, answer: &Answer) {
        let (Deed::Handshake { reply_lost, .. } | Deed::Rotate { reply_lost, .. }) = transition.deed else {
            return;
        };
        if let (false, Answer::Credential(token) | Answer::Replacement { credential: token, .. }) =
            (reply_lost, answer)
        {
            self.seen[transition.backend].push(*token);
        }
    }
}

struct Reference;

impl ReferenceStateMachine for Reference {
    type State = Model;
    type Transition = Transition;

    fn init_state() -> BoxedStrategy<Model> {
        // Nearly every run begins with a handshake; those that do not are found among the transitions.
        prop::bool::weighted(0.95)
            .prop_map(|shaken_hands| {
                let mut model = Model::new();
                if shaken_hands {
                    model.nonce_used = true;
                    model.made = 1;
                    model.issued.push(1);
                    model.seen[0].push(1);
                }
                model
            })
            .boxed()
    }

    fn transitions(_: &Model) -> BoxedStrategy<Transition> {
        // Built once: building it for every step costs more than everything else together.
        thread_local! {
            static TRANSITIONS: BoxedStrategy<Transition> = {
                let late = prop_oneof![6 => Just(0_u64), 1 => 1_u64..4];
                let transition = |(backend, late, deed)| Transition { backend, late, deed };
                (0..BACKENDS, late, deeds()).prop_map(transition).boxed()
            };
        }
        TRANSITIONS.with(Clone::clone)
    }

    fn apply(mut model: Model, transition: &Transition) -> Model {
        let operation = model.resolve(transition);
        let answer = model.carry_out(&operation).unwrap_or_else(Answer::Refused);
        model.hear(transition, &answer);
        model.last = Some((operation, answer));
        model
    }
}

fn deeds() -> BoxedStrategy<Deed> {
    let with = || {
        prop_oneof![
            8 => (0_usize..3).prop_map(Choice::Seen),
            8 => (0_usize..3).prop_map(Choice::Issued),
            1 => (0_usize..5).prop_map(Choice::Made),
            1 => Just(Choice::Stranger),
            1 => Just(Choice::Missing),
        ]
    };
    prop_oneof![
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(right_nonce, reply_lost)| Deed::Handshake { right_nonce, reply_lost }),
        9 => (with(), prop::bool::weighted(0.3)).prop_map(|(with, reply_lost)| Deed::Rotate { with, reply_lost }),
        8 => (with(), 0_u64..5).prop_map(|(with, id)| Deed::Confirm { with, id }),
        5 => with().prop_map(|with| Deed::Claim { with }),
        6 => (with(), any::<bool>()).prop_map(|(with, driver_route)| Deed::Admit { with, driver_route }),
        6 => (0_usize..4).prop_map(|admission| Deed::OpenStream { admission }),
        2 => (0_usize..4).prop_map(|admission| Deed::StillDrives { admission }),
        2 => (0_usize..6).prop_map(|stream| Deed::StreamEnds { stream }),
        3 => (1_u64..200).prop_map(|seconds| Deed::Pass { seconds }),
        1 => (0_u64..4).prop_map(|minus| Deed::PassToExpiry { minus }),
        3 => (0_u64..4).prop_map(|early| Deed::Tick { early }),
        // Rare, for little happens after it.
        1 => prop_oneof![with().prop_map(|with| Deed::AskToShutDown { with }), Just(Deed::Signal)],
    ]
    .boxed()
}

/// The ownership, with the ids of its streams in the model's order.
struct Real {
    ownership: Ownership<usize>,
    streams: Vec<StreamId>,
    /// Every credential that was made; the index is its token.
    made: Vec<Credential>,
    latest: Option<RotationId>,
}

struct OwnershipTest;

impl StateMachineTest for OwnershipTest {
    type SystemUnderTest = Real;
    type Reference = Reference;

    fn init_test(model: &Model) -> Real {
        let mut ownership =
            Ownership::new(instant(START), SecretString::from("nonce"), Duration::from_secs(PERIOD));
        for first in &model.issued {
            ownership.handshake(instant(START), "nonce", credential(*first)).expect("it is the first");
        }
        Real { ownership, streams: vec![], made: vec![], latest: None }
    }

    fn apply(mut real: Real, model: &Model, _: Transition) -> Real {
        STEPS.fetch_add(1, Ordering::Relaxed);
        while real.made.len() <= model.made as usize {
            real.made.push(credential(real.made.len() as Token));
        }
        let (operation, expected) = model.last.as_ref().expect("the model went first");
        let answer = real.carry_out(operation).unwrap_or_else(Answer::Refused);
        REACHED.with_borrow_mut(|reached| *reached.entry(fact(operation, expected)).or_default() += 1);
        assert_eq!(*expected, answer, "model (left) and ownership (right) differ over {operation:?}");
        real.compare(model);
        real
    }
}

impl Real {
    fn carry_out(&mut self, operation: &Operation) -> Result<Answer, AdmissionRefused> {
        let (ownership, made) = (&mut self.ownership, &self.made);
        let presented = |with: Option<Token>| with.map(|token| &made[token as usize]);
        let fresh_one = |token: Token| made[token as usize].clone();
        match *operation {
            Operation::Handshake { at, right_nonce, fresh } => {
                let nonce = if right_nonce { "nonce" } else { "guess" };
                let issued = ownership.handshake(instant(at), nonce, fresh_one(fresh))?;
                Ok(Answer::Credential(token(&issued, made)))
            }
            Operation::Rotate { at, with, fresh } => {
                let rotated = ownership.rotate(instant(at), presented(with), fresh_one(fresh))?;
                Ok(Answer::Replacement {
                    id: rotated.replacement.id.0,
                    credential: token(&rotated.replacement.credential, made),
                    replayed: rotated.replacement.replayed,
                    fenced: rotated.superseded_streams.into_iter().map(|(_, stream)| stream).collect(),
                })
            }
            Operation::Confirm { at, with, id } => {
                ownership.confirm(instant(at), presented(with), RotationId(id)).map(Answer::Confirmed)
            }
            Operation::Claim { at, with } => {
                ownership.claim(instant(at), presented(with)).map(|()| Answer::Done)
            }
            Operation::Admit { at, with, access } => {
                ownership.admit(instant(at), access, presented(with)).map(Answer::Admitted)
            }
            Operation::OpenStream { at, admitted } => {
                let number = self.streams.len();
                self.streams.push(ownership.open_stream(instant(at), admitted, || number)?);
                Ok(Answer::Done)
            }
            Operation::StillDrives { at, admitted } => {
                ownership.still_drives(instant(at), admitted).map(|()| Answer::Done)
            }
            Operation::StreamEnds { stream } => {
                ownership.forget_stream(self.streams[stream]);
                Ok(Answer::Done)
            }
            Operation::AskToShutDown { at, with } => {
                let reason = ownership.ask_to_shut_down(instant(at), presented(with))?;
                Ok(Answer::Shutdown(Some(reason)))
            }
            Operation::Signal { at } => {
                Ok(Answer::Shutdown(Some(ownership.shut_down(instant(at), ShutdownReason::Signalled))))
            }
            Operation::Tick { at } => Ok(Answer::Shutdown(ownership.check(instant(at)))),
            Operation::Nothing => Ok(Answer::Done),
        }
    }

    fn compare(&mut self, model: &Model) {
        let mut acceptable = 0;
        for token in STRANGER..=model.made {
            // A reading of the start judges no age.
            let may = match self.ownership.admit(
                instant(START),
                Access::AdoptionOnly,
                Some(&self.made[token as usize]),
            ) {
                Ok(Admitted::Driver(_)) => May::Everything,
                Ok(_) => May::OnlyAdopt,
                Err(_) => May::Nothing,
            };
            assert!(
                may == model.may(Some(token)),
                "credential {token} may something else than the model says"
            );
            acceptable += usize::from(may != May::Nothing);
        }
        let deadline = model.shutdowns.is_empty().then(|| instant(model.expires_at()));
        assert_eq!(deadline, self.ownership.next_deadline());
        let open: Vec<_> = self.ownership.streams().collect();
        let expected = model.streams.iter().zip(&self.streams).filter(|(stream, _)| !stream.over);
        assert!(expected.map(|(stream, id)| (*id, RotationId(stream.rotation))).eq(open.iter().copied()));

        // Without the model.
        let latest = self.ownership.latest_rotation();
        assert!(acceptable <= 2, "more than two credentials are acceptable (O-002.8)");
        assert!(latest.is_none() || acceptable > 0, "nobody can ever adopt this server again (O-002.7)");
        assert!(
            open.iter().all(|(_, rotation)| Some(*rotation) == latest),
            "a superseded stream is open (O-002.2)"
        );
        assert!(latest >= self.latest, "a rotation id fell (O-002.6)");
        self.latest = latest;
    }
}

/// What a step was an example of.
fn fact(operation: &Operation, answer: &Answer) -> &'static str {
    match (operation, answer) {
        (Operation::Rotate { .. }, Answer::Replacement { replayed: true, .. }) => "replacement told again",
        (Operation::Rotate { .. }, Answer::Replacement { fenced, .. }) if fenced.is_empty() => "rotated",
        (Operation::Rotate { .. }, Answer::Replacement { .. }) => "rotated, streams fenced",
        (Operation::Confirm { .. }, Answer::Confirmed(true)) => "confirmed",
        (Operation::Confirm { .. }, Answer::Confirmed(false)) => "confirmed again, or an older one",
        (Operation::Claim { .. }, Answer::Done) => "claimed",
        (Operation::OpenStream { .. }, Answer::Done) => "stream opened",
        (Operation::OpenStream { .. }, Answer::Refused(AdmissionRefused::CredentialSuperseded { .. })) => {
            "stream of a superseded admission refused"
        }
        (_, Answer::Shutdown(Some(ShutdownReason::Unowned))) => "found unowned",
        (_, Answer::Shutdown(Some(_))) => "found shutting down for another reason",
        (_, Answer::Refused(AdmissionRefused::ShuttingDown)) => "refused, shutting down",
        (_, Answer::Refused(AdmissionRefused::CredentialSuperseded { .. })) => "refused, superseded",
        (_, Answer::Refused(AdmissionRefused::UnknownRotation(_))) => "refused, unknown rotation",
        (_, Answer::Refused(AdmissionRefused::HandshakeRefused)) => "refused, handshake",
        (_, Answer::Refused(_)) => "refused, unauthorized",
        (_, _) => "anything else",
    }
}

fn instant(seconds: u64) -> Monotonic {
    Monotonic::from_origin(Duration::from_secs(seconds))
}

/// Neighbours differ in few bits, and only at the far end.
fn credential(token: Token) -> Credential {
    let mut bytes = [0xa5; 32];
    bytes[28..].copy_from_slice(&token.to_be_bytes());
    Credential::from_entropy(bytes)
}

fn token(known: &Credential, made: &[Credential]) -> Token {
    made.iter().rposition(|one| one == known).expect("the ownership invented a credential") as Token
}

const BACKENDS: usize = 3;
const STRANGER: Token = 0;
const START: u64 = 10;
const PERIOD: u64 = 600;

/// With [`LONGEST_RUN`] about four million steps, in well under a minute on one core.
const RUNS: u32 = 120_000;
/// Long enough for several rotations, short enough that most of a run happens before a shutdown.
const LONGEST_RUN: usize = 64;

static STEPS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static REACHED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}
/// Below this a fact was hardly tried, and the transitions' weights are wrong.
const RARE: u64 = 1_000;
/// How many there are in [`fact`].
const FACTS: usize = 16;

#[test]
fn no_interleaving_of_three_backends_and_the_clock_tells_ownership_from_its_model() {
    let started = AtomicU64::new(0);
    let passed = AtomicU64::new(0);
    let found_in = AtomicU64::new(0);
    let found_after = AtomicU64::new(0);
    let config = ProptestConfig {
        cases: RUNS,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    };
    // The same runs every time: what is red once is red again.
    let chance = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config.clone(), chance);
    let outcome =
        runner.run(&Reference::sequential_strategy(1..=LONGEST_RUN), |(model, transitions, seen)| {
            let run = started.fetch_add(1, Ordering::Relaxed);
            if run > passed.load(Ordering::Relaxed) && found_in.load(Ordering::Relaxed) == 0 {
                // The run before this one did not come back: from here on it is being shrunk.
                found_in.store(run, Ordering::Relaxed);
                found_after.store(STEPS.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            OwnershipTest::test_sequential(config.clone(), model, transitions, seen);
            passed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    match outcome {
        Ok(()) => {
            let reached = REACHED.take();
            println!("{RUNS} runs, {} steps: {reached:#?}", STEPS.load(Ordering::Relaxed));
            assert!(
                reached.len() == FACTS && reached.values().all(|times| *times > RARE),
                "something was hardly tried"
            );
        }
        Err(TestError::Fail(why, (_, transitions, _))) => panic!(
            "found in run {} after {} steps: {why}\nshrunk to {transitions:#?}",
            found_in.load(Ordering::Relaxed),
            found_after.load(Ordering::Relaxed),
        ),
        Err(error) => panic!("{error}"),
    }
}
