//! The Network seam on one machine: ports, a backlog, connections of our own channels.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use seam::{BoxFuture, Listener, Network, Stream};

use crate::channel::{ChannelId, Connection};
use crate::plan::Fault;
use crate::trace::{Fields, Kind, fields};
use crate::world::{Key, State, World, give_way};

/// The network as one process sees it.
pub(crate) struct SimNetwork {
    pub(crate) world: Arc<World>,
    pub(crate) key: Key,
}

/// All listening sockets of the run.
#[derive(Default)]
pub(crate) struct Listeners {
    count: u64,
    table: BTreeMap<u64, Listening>,
    ephemeral: u16,
}

struct Listening {
    address: SocketAddr,
    owner: Key,
    backlog: VecDeque<Waiting>,
    waiter: Option<Waker>,
}

/// A connection that is established and not yet accepted. The listener's process has its server end.
struct Waiting {
    arrival: u64,
    rx: ChannelId,
    tx: ChannelId,
    peer: SocketAddr,
}

enum Connecting {
    Done {
        rx: ChannelId,
        tx: ChannelId,
    },
    Refused,
    /// The backlog is full: the kernel drops the request and the client tries again.
    Full,
}

struct SimListener {
    world: Arc<World>,
    key: Key,
    id: u64,
    address: SocketAddr,
}

impl Network for SimNetwork {
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let (id, address) = self
                .world
                .act(self.key, "net.listen", |state, told| {
                    told.insert("address".to_owned(), address.to_string());
                    let bound = listen(state, self.key, address);
                    if let Err(error) = &bound {
                        told.insert("failed".to_owned(), error.to_string());
                    }
                    bound
                })
                .await?;
            let listener: Box<dyn Listener> =
                Box::new(SimListener { world: Arc::clone(&self.world), key: self.key, id, address });
            Ok(listener)
        })
    }

    fn connect(&self, address: SocketAddr, limit: Duration) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            let deadline = {
                let state = self.world.lock();
                state.tick_of_ms(state.now_ms().saturating_add(limit_ms))
            };
            loop {
                let connecting = self
                    .world
                    .act(self.key, "net.connect", |state, told| connect(state, self.key, address, told))
                    .await;
                match connecting {
                    Connecting::Done { rx, tx } => {
                        let stream: Stream = Box::new(Connection::new(&self.world, self.key, rx, tx));
                        // The handshake takes its time; a caller that goes away in it drops the stream.
                        let established = self.world.lock().arrival();
                        self.world.sleep_until_tick(self.key, established).await;
                        return Ok(stream);
                    }
                    Connecting::Refused => {
                        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused"));
                    }
                    Connecting::Full => {}
                }
                if self.world.lock().now >= deadline {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
                }
                self.world.sleep_ticks(self.key, 1).await;
            }
        })
    }

    fn resolve(&self, host: &str, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        let named = match host {
            "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            literal => literal.parse().ok(),
        };
        let host = host.to_owned();
        Box::pin(async move {
            self.world.turn(self.key, "net.resolve").await;
            match named {
                Some(ip) => Ok(vec![SocketAddr::new(ip, port)]),
                None => Err(io::Error::new(io::ErrorKind::NotFound, format!("{host}: name not known"))),
            }
        })
    }
}

fn listen(state: &mut State, owner: Key, address: SocketAddr) -> io::Result<(u64, SocketAddr)> {
    let ip = address.ip();
    if !ip.is_loopback() && !ip.is_unspecified() {
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "cannot assign requested address"));
    }
    let address = if address.port() == 0 { SocketAddr::new(ip, free_port(state)) } else { address };
    if state.listeners.table.values().any(|other| overlap(other.address, address)) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "address already in use"));
    }
    state.listeners.count += 1;
    let id = state.listeners.count;
    state.listeners.table.insert(id, Listening { address, owner, backlog: VecDeque::new(), waiter: None });
    Ok((id, address))
}

fn connect(state: &mut State, client: Key, address: SocketAddr, told: &mut Fields) -> Connecting {
    told.insert("address".to_owned(), address.to_string());
    let process = state.processes.get_mut(&client).expect("a caller is in the table");
    process.connects += 1;
    let (name, life, connect) = (process.name.clone(), process.life, process.connects);
    let found = state.listeners.table.iter().find(|(_, listening)| reaches(listening.address, address));
    let Some((id, owner, waiting)) =
        found.map(|(id, listening)| (*id, listening.owner, listening.backlog.len()))
    else {
        told.insert("failed".to_owned(), "refused".to_owned());
        return Connecting::Refused;
    };
    let mut refused = None;
    let mut lost = None;
    for (index, fault) in state.faults() {
        match fault {
            Fault::ConnectRefused { process, life: in_life, connect: nth }
                if *process == name && *in_life == life && *nth == connect =>
            {
                refused = Some(index);
            }
            Fault::LostReply { process, life: in_life, connect: nth }
                if *process == name && *in_life == life && *nth == connect =>
            {
                lost = Some(index);
            }
            _ => {}
        }
    }
    if let Some(index) = refused {
        state.fault_fired(index, true, true);
        state.say(client, Kind::Fault, "connect refused", fields([("address", address.to_string())]));
        told.insert("failed".to_owned(), "refused".to_owned());
        return Connecting::Refused;
    }
    if waiting >= BACKLOG {
        told.insert("failed".to_owned(), "backlog full".to_owned());
        return Connecting::Full;
    }
    let class = state.processes[&owner].name.clone();
    let (there, back) = state.open_connection(&class, client, owner);
    if let Some(index) = lost {
        state.lose_reply(back, index);
    }
    let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free_port(state));
    told.extend(fields([("to", state.label(owner)), ("port", peer.port().to_string())]));
    let arrival = state.arrival();
    let listening = state.listeners.table.get_mut(&id).expect("just found");
    let arrival = listening.backlog.back().map_or(arrival, |last| arrival.max(last.arrival));
    listening.backlog.push_back(Waiting { arrival, rx: there, tx: back, peer });
    if let Some(waker) = listening.waiter.take() {
        state.wake_at(arrival, owner, Some(waker));
    }
    Connecting::Done { rx: back, tx: there }
}

/// Ports for clients and for whoever asks for any: in order, skipping the ones that are listened on.
fn free_port(state: &mut State) -> u16 {
    loop {
        let port = EPHEMERAL + state.listeners.ephemeral % EPHEMERAL_PORTS;
        state.listeners.ephemeral = (state.listeners.ephemeral + 1) % EPHEMERAL_PORTS;
        if state.listeners.table.values().all(|listening| listening.address.port() != port) {
            return port;
        }
    }
}

fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let same = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && same
}

fn reaches(listening: SocketAddr, address: SocketAddr) -> bool {
    listening.port() == address.port()
        && (listening.ip() == address.ip() || (listening.ip().is_unspecified() && address.ip().is_loopback()))
}

impl State {
    /// The kernel closes the listening sockets of a process that has ended.
    pub(crate) fn close_listeners_of(&mut self, key: Key) {
        let owned: Vec<u64> = self
            .listeners
            .table
            .iter()
            .filter(|(_, listening)| listening.owner == key)
            .map(|(id, _)| *id)
            .collect();
        for id in owned {
            self.close_listener(id);
        }
    }

    /// Frees the port and resets what was never accepted.
    fn close_listener(&mut self, id: u64) {
        let Some(listening) = self.listeners.table.remove(&id) else { return };
        for waiting in listening.backlog {
            let tick = self.arrival();
            self.reset_channel(waiting.tx, tick);
            self.close_writer(waiting.tx);
            self.close_reader(waiting.rx);
        }
    }
}

impl Listener for SimListener {
    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            let mut yields = None;
            let mut waited = false;
            let accepted = poll_fn(|cx| {
                let mut state = self.world.lock();
                if state.count_call(self.key, "accept").is_err() {
                    return Poll::Pending;
                }
                let now = state.now;
                let listening = state.listeners.table.get_mut(&self.id).expect("open while it is held");
                match listening.backlog.front().map(|front| front.arrival) {
                    Some(arrival) if arrival <= now => {}
                    next => {
                        listening.waiter = Some(cx.waker().clone());
                        waited = true;
                        if let Some(arrival) = next {
                            state.wake_at(arrival, self.key, Some(cx.waker().clone()));
                        }
                        return Poll::Pending;
                    }
                }
                // Before the connection is taken: what is taken is handed out at once, which makes this cancel
                // safe.
                if yields.is_none() {
                    yields = Some(if waited { state.draw_yields() } else { 0 });
                }
                match yields {
                    Some(left @ 1..) => {
                        yields = Some(left - 1);
                        give_way(cx);
                        Poll::Pending
                    }
                    _ => {
                        let listening =
                            state.listeners.table.get_mut(&self.id).expect("open while it is held");
                        Poll::Ready(listening.backlog.pop_front().expect("its front was just looked at"))
                    }
                }
            })
            .await;
            let stream: Stream = Box::new(Connection::new(&self.world, self.key, accepted.rx, accepted.tx));
            Ok((stream, accepted.peer))
        })
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        if state.alive(self.key) {
            state.close_listener(self.id);
        }
    }
}

/// How many connections wait to be accepted; one more is not answered. The usual `listen` backlog.
const BACKLOG: usize = 128;

const EPHEMERAL: u16 = 40_000;
/// Enough that a port is not met again while somebody remembers it.
const EPHEMERAL_PORTS: u16 = 20_000;
