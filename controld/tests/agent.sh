# An agent in a few lines, for the tests beside it. What it does in a turn is the prompt's text.
say() { printf '%s\n' "$1"; }
answer() { say '{"jsonrpc":"2.0","id":'"$1"',"result":'"$2"'}'; }
update() {
    say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"conv","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$1"'"}}}}'
}
ask() {
    say '{"jsonrpc":"2.0","id":"q1","method":"session/request_permission","params":{"sessionId":"conv","toolCall":{"toolCallId":"t1"},"options":[{"optionId":"yes","name":"Yes","kind":"allow_once"}]}}'
}
while IFS= read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\|[0-9][0-9]*\).*/\1/p')
    case "$line" in
    *'"method":"initialize"'*) answer "$id" '{"protocolVersion":1}' ;;
    *'"method":"session/new"'*) answer "$id" '{"sessionId":"conv"}' ;;
    *'"method":"session/cancel"'*) answer "$prompt" '{"stopReason":"end_turn"}' ;;
    *'"outcome":"selected"'*)
        update "was allowed"
        answer "$prompt" '{"stopReason":"end_turn"}'
        ;;
    *'"method":"session/prompt"'*)
        prompt=$id
        case "$line" in
        *'say '*)
            count=$(printf '%s' "$line" | sed -n 's/.*say \([0-9][0-9]*\).*/\1/p')
            n=1
            while [ "$n" -le "$count" ]; do
                update "$n"
                n=$((n + 1))
            done
            answer "$id" '{"stopReason":"end_turn"}'
            ;;
        *'break down'*)
            update "last words"
            echo "it broke" >&2
            # It leaves the group and holds the pipe.
            setsid sleep 600 &
            exit 7
            ;;
        *'ask and exit'*)
            ask
            exit 0
            ;;
        *'ask'*) ask ;;
        *'wait'*) update "waiting" ;;
        esac
        ;;
    esac
done
