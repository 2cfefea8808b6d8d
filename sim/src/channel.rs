//! One direction of bytes: a pipe, or half of a connection. 64 KiB, partial writes and short reads by seed,
//! and a way to end for each that the kernel knows: end of file, broken pipe, reset.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::plan::{Answering, Fault};
use crate::trace::{Kind, fields};
use crate::world::{Dead, Key, State, World, give_way};

/// A direction of bytes, for the whole run.
pub(crate) type ChannelId = u64;

/// All directions of the run that still have an end.
#[derive(Default)]
pub(crate) struct Channels {
    count: u64,
    table: BTreeMap<ChannelId, Channel>,
}

pub(crate) struct Channel {
    /// The program that listened, or whose standard stream this is.
    class: String,
    /// The opposite direction of the same connection; none for a pipe.
    opposite: Option<ChannelId>,
    writer: Option<Key>,
    reader: Option<Key>,
    segments: VecDeque<Segment>,
    buffered: usize,
    /// Space that the writer does not know of yet: when it learns of it, and how much.
    freed: VecDeque<(u64, usize)>,
    last_arrival: u64,
    /// When the reader learns that the writer is gone.
    writer_gone: Option<u64>,
    /// When the writer learns that the reader is gone.
    reader_gone: Option<u64>,
    /// When the reader gets a reset, after what has arrived before.
    reset: Option<u64>,
    reset_told: bool,
    read_waiter: Option<Waker>,
    write_waiter: Option<Waker>,
    /// Index of the fault that turns the first bytes of this direction into a reset.
    pub(crate) lost_reply: Option<usize>,
    /// Whether this is what a server says to its clients.
    answers: bool,
    /// Nothing that is written here arrives any more.
    silent: bool,
    /// The trace has said that answers go wrong here.
    odd_told: bool,
}

struct Segment {
    arrival: u64,
    bytes: Vec<u8>,
    taken: usize,
}

impl Channels {
    fn entry(&mut self, id: ChannelId) -> &mut Channel {
        self.table.get_mut(&id).expect("a channel stays while one of its ends is open")
    }

    /// Every channel that this process has an end of.
    fn of(&self, key: Key) -> Vec<ChannelId> {
        let held = |channel: &Channel| channel.writer == Some(key) || channel.reader == Some(key);
        self.table.iter().filter(|(_, channel)| held(channel)).map(|(id, _)| *id).collect()
    }

    /// The end that one process has of a channel becomes another's.
    pub(crate) fn hand_over(&mut self, id: ChannelId, from: Key, to: Key) {
        let channel = self.entry(id);
        for end in [&mut channel.writer, &mut channel.reader] {
            if *end == Some(from) {
                *end = Some(to);
            }
        }
    }

    pub(crate) fn is_open(&self, id: ChannelId) -> bool {
        self.table.contains_key(&id)
    }
}

impl Channel {
    fn space(&self, now: u64) -> usize {
        let unseen: usize = self.freed.iter().filter(|(at, _)| *at > now).map(|(_, freed)| freed).sum();
        // What arrives twice may take more than there is.
        CAPACITY.saturating_sub(self.buffered + unseen)
    }

    fn reset_by(&self, now: u64) -> bool {
        self.reset.is_some_and(|at| at <= now)
    }

    /// The next tick at which the reader's answer changes.
    fn next_for_reader(&self) -> Option<u64> {
        let front = self.segments.front().map(|segment| segment.arrival);
        front.into_iter().chain(self.writer_gone).chain(self.reset).min()
    }

    fn next_for_writer(&self, now: u64) -> Option<u64> {
        let freed = self.freed.iter().map(|(at, _)| *at).find(|at| *at > now);
        freed.into_iter().chain(self.reader_gone.filter(|at| *at > now)).min()
    }
}

impl State {
    /// A new direction from `writer` to `reader`.
    pub(crate) fn open_channel(&mut self, class: &str, writer: Key, reader: Key) -> ChannelId {
        self.channels.count += 1;
        let id = self.channels.count;
        self.channels.table.insert(
            id,
            Channel {
                class: class.to_owned(),
                opposite: None,
                writer: Some(writer),
                reader: Some(reader),
                segments: VecDeque::new(),
                buffered: 0,
                freed: VecDeque::new(),
                last_arrival: 0,
                writer_gone: None,
                reader_gone: None,
                reset: None,
                reset_told: false,
                read_waiter: None,
                write_waiter: None,
                lost_reply: None,
                answers: false,
                silent: false,
                odd_told: false,
            },
        );
        id
    }

    /// The two directions of a new connection: from the client to the server, and back.
    pub(crate) fn open_connection(
        &mut self,
        class: &str,
        client: Key,
        server: Key,
    ) -> (ChannelId, ChannelId) {
        let there = self.open_channel(class, client, server);
        let back = self.open_channel(class, server, client);
        self.channels.entry(there).opposite = Some(back);
        self.channels.entry(back).opposite = Some(there);
        self.channels.entry(back).answers = true;
        (there, back)
    }

    pub(crate) fn lose_reply(&mut self, back: ChannelId, fault: usize) {
        self.channels.entry(back).lost_reply = Some(fault);
    }

    /// Who has the other end, as the trace names it.
    fn far_end(&self, id: ChannelId) -> String {
        let reader = self.channels.table.get(&id).and_then(|channel| channel.reader);
        reader.map_or_else(|| "nobody".to_owned(), |key| self.label(key))
    }

    fn poll_read(
        &mut self,
        key: Key,
        id: ChannelId,
        limit: usize,
        waker: &Waker,
    ) -> Poll<io::Result<Vec<u8>>> {
        if self.count_call(key, "read").is_err() {
            return Poll::Pending;
        }
        let now = self.now;
        // A short read in a quarter of the cases: whoever relies on whole messages is found out.
        let most = if self.rng.chance(1, 4) { 1 + below(&mut self.rng, limit) } else { limit };
        let freed_at = self.arrival();
        let channel = self.channels.entry(id);
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(front) = channel.segments.front_mut()
            && front.arrival <= now
        {
            let end = front.bytes.len().min(front.taken + most - taken.len());
            taken.extend_from_slice(&front.bytes[front.taken..end]);
            front.taken = end;
            if end == front.bytes.len() {
                channel.segments.pop_front();
            }
        }
        if !taken.is_empty() {
            channel.buffered -= taken.len();
            let freed_at = channel.freed.back().map_or(freed_at, |(last, _)| freed_at.max(*last));
            while channel.freed.front().is_some_and(|(at, _)| *at <= now) {
                channel.freed.pop_front();
            }
            channel.freed.push_back((freed_at, taken.len()));
            let writer = channel.writer.zip(channel.write_waiter.take());
            if let Some((writer, waker)) = writer {
                self.wake_at(freed_at, writer, Some(waker));
            }
            return Poll::Ready(Ok(taken));
        }
        if channel.reset_by(now) && !channel.reset_told {
            channel.reset_told = true;
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "connection reset by peer",
            )));
        }
        let ended = channel.reset_told || channel.writer_gone.is_some_and(|at| at <= now);
        if ended && channel.segments.is_empty() {
            return Poll::Ready(Ok(Vec::new()));
        }
        channel.read_waiter = Some(waker.clone());
        if let Some(next) = channel.next_for_reader().filter(|next| *next > now) {
            self.wake_at(next, key, Some(waker.clone()));
        }
        Poll::Pending
    }

    fn poll_write(
        &mut self,
        key: Key,
        id: ChannelId,
        bytes: &[u8],
        waker: &Waker,
    ) -> Poll<io::Result<usize>> {
        if !self.alive(key) {
            return Poll::Pending;
        }
        let now = self.now;
        let channel = self.channels.entry(id);
        let opposite = channel.opposite;
        let reader_gone = channel.reader_gone.is_some_and(|at| at <= now);
        let shut = channel.writer_gone.is_some();
        let own_reset = opposite.is_some_and(|back| self.channels.entry(back).reset_by(now));
        if shut || own_reset || (reader_gone && opposite.is_none()) {
            if self.count_call(key, "write").is_err() {
                return Poll::Pending;
            }
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, "broken pipe")));
        }
        let space = self.channels.entry(id).space(now);
        if space == 0 && !reader_gone {
            if self.count_call(key, "write").is_err() {
                return Poll::Pending;
            }
            let channel = self.channels.entry(id);
            channel.write_waiter = Some(waker.clone());
            if let Some(next) = channel.next_for_writer(now) {
                self.wake_at(next, key, Some(waker.clone()));
            }
            return Poll::Pending;
        }
        let most = if reader_gone { bytes.len() } else { bytes.len().min(space) };
        // A whole message: two halves that each came twice would be garbage instead.
        let whole = self.odd_answers(id).is_some_and(|(_, how)| how == Answering::Twice);
        let split = !whole && most > 1 && self.rng.chance(1, 4);
        let accepted = if split { 1 + below(&mut self.rng, most) } else { most };
        let call = if opposite.is_some() { "stream.write" } else { "pipe.write" };
        let done = self.effect(key, call, |state, told| {
            told.extend(fields([("to", state.far_end(id)), ("bytes", accepted.to_string())]));
            if reader_gone {
                // The first write after the peer has closed is accepted and answered with a reset.
                let answer = state.arrival();
                state.reset_channel(opposite.expect("only a connection gets here"), answer);
            } else {
                state.accept_bytes(id, &bytes[..accepted]);
            }
        });
        match done {
            Ok(()) => Poll::Ready(Ok(accepted)),
            Err(Dead) => Poll::Pending,
        }
    }

    fn accept_bytes(&mut self, id: ChannelId, bytes: &[u8]) {
        if let Some(fault) = self.channels.entry(id).lost_reply.take()
            && self.faults().any(|(index, _)| index == fault)
        {
            self.fault_fired(fault, true, true);
            let writer = self.channels.entry(id).writer.unwrap_or_default();
            self.say(writer, Kind::Fault, "reply lost, connection reset", fields([("to", self.far_end(id))]));
            let at = self.arrival();
            self.reset_channel(id, at);
            if let Some(back) = self.channels.entry(id).opposite {
                let at = self.arrival();
                self.reset_channel(back, at);
            }
            return;
        }
        let slow = self.slowness(id);
        let odd = self.odd_answers(id);
        if let Some((fault, how)) = odd {
            self.tell_odd_answer(id, fault, how);
        }
        match odd.map(|(_, how)| how) {
            _ if self.channels.entry(id).silent => {}
            None => self.put(id, bytes.to_vec(), slow),
            Some(Answering::Never) => self.channels.entry(id).silent = true,
            Some(Answering::Wrong) => {
                let other_status = self.rng.chance(1, 2);
                self.put(id, garbled(bytes, other_status), slow);
            }
            Some(Answering::Twice) => self.put(id, [bytes, bytes].concat(), slow),
            Some(Answering::Late { by_ms }) => {
                let late = self.tick_of_ms(by_ms);
                self.put(id, bytes.to_vec(), slow + late);
            }
        }
    }

    /// Bytes that arrive as all others do, and that many ticks later.
    fn put(&mut self, id: ChannelId, bytes: Vec<u8>, later: u64) {
        let drawn = self.arrival() + later;
        let channel = self.channels.entry(id);
        let arrival = drawn.max(channel.last_arrival);
        channel.last_arrival = arrival;
        channel.buffered += bytes.len();
        channel.segments.push_back(Segment { arrival, bytes, taken: 0 });
        self.wake_reader(id, arrival);
    }

    /// The fault that answers in this direction are subject to now.
    fn odd_answers(&self, id: ChannelId) -> Option<(usize, Answering)> {
        let channel = &self.channels.table[&id];
        let now_ms = self.now_ms();
        self.faults().find_map(|(index, fault)| match fault {
            Fault::Answers { process, from_ms, to_ms, how }
                if channel.answers && *process == channel.class && (*from_ms..*to_ms).contains(&now_ms) =>
            {
                Some((index, *how))
            }
            _ => None,
        })
    }

    /// Counts every answer, and says so once for a connection.
    fn tell_odd_answer(&mut self, id: ChannelId, fault: usize, how: Answering) {
        let channel = self.channels.entry(id);
        let heard = channel.reader.is_some();
        let writer = channel.writer.unwrap_or_default();
        let told = std::mem::replace(&mut channel.odd_told, true);
        self.fault_fired(fault, heard, false);
        if !told {
            let text = match how {
                Answering::Never => "answer never arrives",
                Answering::Wrong => "answer garbled",
                Answering::Twice => "answer arrives twice",
                Answering::Late { .. } => "answer arrives late",
            };
            self.say(writer, Kind::Fault, text, fields([("to", self.far_end(id))]));
        }
    }

    /// Extra ticks for bytes that leave now.
    fn slowness(&mut self, id: ChannelId) -> u64 {
        let now_ms = self.now_ms();
        let class = &self.channels.table[&id].class;
        let hit = self.faults().find_map(|(index, fault)| match fault {
            Fault::Slow { process, from_ms, to_ms, delay_ms }
                if process == class && (*from_ms..*to_ms).contains(&now_ms) =>
            {
                Some((index, *delay_ms))
            }
            _ => None,
        });
        let Some((index, delay_ms)) = hit else { return 0 };
        self.fault_fired(index, true, false);
        self.tick_of_ms(delay_ms)
    }

    fn wake_reader(&mut self, id: ChannelId, tick: u64) {
        let channel = self.channels.entry(id);
        if let Some((reader, waker)) = channel.reader.zip(channel.read_waiter.take()) {
            self.wake_at(tick, reader, Some(waker));
        }
    }

    fn wake_writer(&mut self, id: ChannelId, tick: u64) {
        let channel = self.channels.entry(id);
        if let Some((writer, waker)) = channel.writer.zip(channel.write_waiter.take()) {
            self.wake_at(tick, writer, Some(waker));
        }
    }

    /// The reader of this direction gets a reset; what has not arrived by now never does.
    pub(crate) fn reset_channel(&mut self, id: ChannelId, tick: u64) {
        if !self.channels.is_open(id) {
            return;
        }
        let now = self.now;
        let channel = self.channels.entry(id);
        channel.reset = Some(channel.reset.map_or(tick, |earlier| earlier.min(tick)));
        channel.segments.retain(|segment| segment.arrival <= now);
        channel.buffered =
            channel.segments.iter().map(|segment| segment.bytes.len() - segment.taken).sum::<usize>();
        self.wake_reader(id, tick);
        if let Some(back) = self.channels.entry(id).opposite.filter(|back| self.channels.is_open(*back)) {
            self.wake_writer(back, tick);
        }
    }

    /// The writer says that nothing follows.
    fn shut_channel(&mut self, id: ChannelId) {
        if self.channels.entry(id).writer_gone.is_some() {
            return;
        }
        let drawn = self.arrival();
        let channel = self.channels.entry(id);
        let tick = drawn.max(channel.last_arrival);
        channel.writer_gone = Some(tick);
        self.wake_reader(id, tick);
    }

    /// The writing end is closed.
    pub(crate) fn close_writer(&mut self, id: ChannelId) {
        if !self.channels.is_open(id) {
            return;
        }
        // A reset has been the last word already.
        if self.channels.entry(id).reset.is_none() {
            self.shut_channel(id);
        }
        self.channels.entry(id).writer = None;
        self.forget_if_closed(id);
    }

    /// The reading end is closed.
    pub(crate) fn close_reader(&mut self, id: ChannelId) {
        if !self.channels.is_open(id) {
            return;
        }
        let tick = self.arrival();
        let channel = self.channels.entry(id);
        channel.reader = None;
        channel.reader_gone.get_or_insert(tick);
        self.wake_writer(id, tick);
        self.forget_if_closed(id);
    }

    /// Both directions of a connection are closed by the one who reads `rx` and writes `tx`. Unread bytes make
    /// the kernel answer with a reset instead of an orderly end.
    pub(crate) fn close_connection(&mut self, rx: ChannelId, tx: ChannelId) {
        let unread = self.channels.table.get(&rx).is_some_and(|channel| channel.buffered > 0);
        if unread && self.channels.table.get(&tx).is_some_and(|channel| channel.reader.is_some()) {
            let tick = self.arrival();
            self.reset_channel(tx, tick);
        }
        self.close_writer(tx);
        self.close_reader(rx);
    }

    /// What the kernel does with the pipes and connections of a process that has ended.
    pub(crate) fn close_channels_of(&mut self, key: Key) {
        for id in self.channels.of(key) {
            let Some(channel) = self.channels.table.get(&id) else { continue };
            match channel.opposite {
                Some(back) if channel.reader == Some(key) => self.close_connection(id, back),
                _ => {
                    if channel.writer == Some(key) {
                        self.close_writer(id);
                    }
                    if self.channels.table.get(&id).is_some_and(|channel| channel.reader == Some(key)) {
                        self.close_reader(id);
                    }
                }
            }
        }
    }

    fn forget_if_closed(&mut self, id: ChannelId) {
        let channel = self.channels.entry(id);
        if channel.writer.is_none() && channel.reader.is_none() {
            self.channels.table.remove(&id);
        }
    }
}

/// The reading end of a direction.
pub(crate) struct ReadEnd {
    world: Arc<World>,
    key: Key,
    id: ChannelId,
    pause: Pause,
    closes: bool,
}

/// The writing end of a direction.
pub(crate) struct WriteEnd {
    world: Arc<World>,
    key: Key,
    id: ChannelId,
    pause: Pause,
    closes: bool,
}

/// One end of a connection.
pub(crate) struct Connection {
    rx: ReadEnd,
    tx: WriteEnd,
}

/// The null device.
pub(crate) struct Null;

/// Lets others go first after a wake: how many times is drawn when the wait is over.
#[derive(Default)]
struct Pause {
    waited: bool,
    yields: u8,
}

impl Pause {
    /// Whether the caller goes on now.
    fn over(&mut self, world: &World, cx: &mut Context<'_>) -> bool {
        if std::mem::take(&mut self.waited) {
            self.yields = world.lock().draw_yields();
        }
        if self.yields == 0 {
            return true;
        }
        self.yields -= 1;
        give_way(cx);
        false
    }
}

impl ReadEnd {
    pub(crate) fn new(world: &Arc<World>, key: Key, id: ChannelId) -> Self {
        Self { world: Arc::clone(world), key, id, pause: Pause::default(), closes: true }
    }
}

impl WriteEnd {
    pub(crate) fn new(world: &Arc<World>, key: Key, id: ChannelId) -> Self {
        Self { world: Arc::clone(world), key, id, pause: Pause::default(), closes: true }
    }
}

impl Connection {
    pub(crate) fn new(world: &Arc<World>, key: Key, rx: ChannelId, tx: ChannelId) -> Self {
        let mut connection = Self { rx: ReadEnd::new(world, key, rx), tx: WriteEnd::new(world, key, tx) };
        // Both directions close together, so that unread bytes can turn into a reset.
        connection.rx.closes = false;
        connection.tx.closes = false;
        connection
    }
}

impl AsyncRead for ReadEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let end = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if !end.pause.over(&end.world, cx) {
            return Poll::Pending;
        }
        let read = end.world.lock().poll_read(end.key, end.id, buf.remaining(), cx.waker());
        end.pause.waited = read.is_pending();
        read.map_ok(|bytes| buf.put_slice(&bytes))
    }
}

impl AsyncWrite for WriteEnd {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let end = self.get_mut();
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if !end.pause.over(&end.world, cx) {
            return Poll::Pending;
        }
        let written = end.world.lock().poll_write(end.key, end.id, bytes, cx.waker());
        end.pause.waited = written.is_pending();
        written
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.world.lock();
        if !state.alive(self.key) {
            return Poll::Pending;
        }
        state.shut_channel(self.id);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.rx).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tx).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tx).poll_shutdown(cx)
    }
}

impl Drop for ReadEnd {
    fn drop(&mut self) {
        if self.closes {
            let mut state = self.world.lock();
            if state.alive(self.key) {
                state.close_reader(self.id);
            }
        }
    }
}

impl Drop for WriteEnd {
    fn drop(&mut self) {
        if self.closes {
            let mut state = self.world.lock();
            if state.alive(self.key) {
                state.close_writer(self.id);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.rx.world.lock();
        if state.alive(self.rx.key) {
            state.close_connection(self.rx.id, self.tx.id);
        }
    }
}

impl AsyncRead for Null {
    fn poll_read(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Null {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// As long as it was and of no use: nothing is left from the first brace on. Where there is none, or if it is asked
/// for, an HTTP answer has another status.
fn garbled(bytes: &[u8], other_status: bool) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let brace = bytes.iter().position(|byte| *byte == b'{');
    let kept = brace.unwrap_or(bytes.len());
    bytes[kept..].fill(b'?');
    if (other_status || brace.is_none()) && bytes.starts_with(b"HTTP/1.1 ") && bytes.len() >= 12 {
        bytes[9..12].copy_from_slice(b"500");
    }
    bytes
}

fn below(rng: &mut crate::seed::Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).expect("below a usize")
}

/// What a Linux pipe holds, and what a loopback socket holds at least: a writer waits there.
pub(crate) const CAPACITY: usize = 64 * 1024;
