//! What a verdict means in a few words, and what would change it, with what to type.

use bowline_core::{Ticket, TicketId, TicketKind, Verdict};

use crate::wire::Remedy;

/// Tickets of one volume, to shorten their ids so that each is still the only one.
pub struct Shortened<'a>(pub &'a [&'a TicketId]);

/// So many characters of a long id are shown at least.
const SHOWN: usize = 12;

/// An id of so many characters is shown whole: it was made for people. Those of CSI end in 64 digits.
const WHOLE: usize = 48;

impl Shortened<'_> {
    /// The beginning of an id that no other ticket has; the whole id if it is short anyway. Ids are ASCII.
    pub fn of<'b>(&self, id: &'b TicketId) -> &'b str {
        let text = id.as_str();
        if text.len() <= WHOLE {
            return text;
        }
        let mut length = SHOWN;
        while length + 4 < text.len() {
            let (Some(begin), rivals) = (text.get(..length), self.0) else { return text };
            if !rivals.iter().any(|rival| *rival != id && rival.as_str().starts_with(begin)) {
                return begin;
            }
            length += 1;
        }
        text
    }

    /// The same, with an ellipsis where something was left out.
    pub fn shown(&self, id: &TicketId) -> String {
        let short = self.of(id);
        if short.len() < id.as_str().len() { format!("{short}…") } else { short.to_owned() }
    }
}

/// A verdict in a few words, as `bowline why` shows it behind the ticket.
pub fn phrase(verdict: &Verdict, ids: &Shortened<'_>) -> String {
    let by = |id: &TicketId| ids.shown(id);
    match verdict {
        Verdict::Satisfied { .. } => "satisfied".to_owned(),
        Verdict::Shared { endpoint } => format!("satisfied: through the share at {endpoint}"),
        Verdict::Granting { target, node, .. } => {
            format!("under way: target {target} is asked to let {node} in")
        }
        Verdict::WaitingForRelease { node, .. } => format!("next: {node} is being shut out"),
        Verdict::Fencing { node, why, .. } => format!("next: {node} is being fenced because {why}"),
        Verdict::StillInUse { node, by, .. } => format!("next: {by} still uses it on {node}"),
        Verdict::TargetUnreachable { target, error, .. } => {
            format!("waiting: target {target} does not answer ({error})")
        }
        Verdict::TargetRefused { target, error, .. } => format!("waiting: target {target} refused ({error})"),
        Verdict::TargetNotCompared { target, error, .. } => {
            format!("waiting: it is not known yet whom target {target} lets in ({error})")
        }
        Verdict::HeldElsewhere { node, by: id, .. } => format!("waiting: held by {node} for {}", by(id)),
        Verdict::Outranked { by: id, kind, .. } => format!("waiting: {} goes first ({kind})", by(id)),
        Verdict::Interrupted { by: id, kind, .. } => format!("interrupted by {} ({kind})", by(id)),
        Verdict::IncompatibleParameters { by: id, clash, .. } => {
            format!("waiting: does not go beside {}: {clash}", by(id))
        }
        Verdict::Migrating { from, to, .. } => format!("waiting: it moves from {from} to {to}"),
        Verdict::MigrationTimedOut { from, .. } => format!("refused: the move from {from} took too long"),
        Verdict::NodeNotReady { node, .. } => format!("waiting: {node} does not report"),
        Verdict::NodeOutOfService { node, .. } => format!("waiting: {node} is out of service"),
        Verdict::NodeGone { node, .. } => format!("waiting: {node} was removed"),
        Verdict::NodeFull { node, limit } => format!("waiting: {node} has {limit} volumes, its limit"),
        Verdict::WaitingForShare => "waiting: for the server of the share".to_owned(),
        Verdict::VolumeFaulted { fault } => format!("waiting: the volume is faulted ({fault})"),
        Verdict::Deleting => "refused: the volume is being deleted".to_owned(),
    }
}

/// What would change a verdict on `ticket`, with what to type; nothing if it has what it asked for. `tickets` are those
/// of the same volume.
pub fn remedy(volume: &str, ticket: &Ticket, verdict: &Verdict, tickets: &[&Ticket]) -> Option<Remedy> {
    let ids: Vec<&TicketId> = tickets.iter().map(|ticket| &ticket.id).collect();
    let ids = Shortened(&ids);
    let name = quoted(volume);
    let withdraw = |id: &TicketId| format!("bowline detach {name} --ticket {}", quoted(ids.of(id)));
    let detach = |node: &str| format!("bowline detach {name} {}", quoted(node));
    let here = &ticket.node;
    let goes = |id: &TicketId| withdrawn(id, tickets, &ids);
    let (sentence, commands) = match verdict {
        Verdict::Satisfied { .. } | Verdict::Shared { .. } => return None,
        Verdict::Granting { target, .. } => {
            (format!("{here} gets it as soon as target {target} answers. Nothing to do."), vec![])
        }
        Verdict::WaitingForRelease { node, .. } => (
            format!("{here} gets it as soon as the target confirms that {node} is out. Nothing to do."),
            vec![],
        ),
        Verdict::Fencing { node, .. } => (
            format!(
                "{here} gets it as soon as the target proves that {node} can no longer reach it. Nothing to do."
            ),
            vec![],
        ),
        Verdict::StillInUse { node, by, .. } => {
            (format!("{here} gets it when {by} on {node} is ended; then it goes on by itself."), vec![])
        }
        Verdict::TargetUnreachable { target, .. } | Verdict::TargetNotCompared { target, .. } => (
            format!(
                "{here} gets it when target {target} answers; until then nobody new is let in. To see what is wrong:"
            ),
            vec!["bowline doctor".to_owned()],
        ),
        Verdict::TargetRefused { target, .. } => (
            format!(
                "{here} gets it when the cause is mended at target {target}; it is asked again by itself. To see more:"
            ),
            vec!["bowline doctor".to_owned()],
        ),
        Verdict::HeldElsewhere { node, by, .. } => (
            format!("{here} gets it when {}, or, if {node} is dead, when that is declared:", goes(by)),
            vec![withdraw(by), format!("bowline peer out-of-service {}", quoted(node.as_str()))],
        ),
        Verdict::Outranked { by, .. } | Verdict::IncompatibleParameters { by, .. } => {
            (format!("{here} gets it when {}:", goes(by)), vec![withdraw(by)])
        }
        Verdict::Interrupted { by, .. } => {
            (format!("{here} gets it back when {}:", goes(by)), vec![withdraw(by)])
        }
        Verdict::Migrating { from, to, .. } => (
            format!(
                "{here} gets it when the move is over and {to} (or {from}) gives it up. To confirm the move, or to roll it back:"
            ),
            vec![detach(from.as_str()), detach(to.as_str())],
        ),
        Verdict::MigrationTimedOut { by, .. } => (
            format!(
                "{here} gets it when {}. To try the move again, withdraw this one and ask anew:",
                goes(by)
            ),
            vec![withdraw(by), withdraw(&ticket.id)],
        ),
        Verdict::NodeNotReady { node, .. } => {
            (format!("It goes on when {node} reports again. To ask no longer:"), vec![withdraw(&ticket.id)])
        }
        Verdict::NodeOutOfService { node, .. } => (
            format!("{node} gets it when it is back in service:"),
            vec![format!("bowline peer back-in-service {}", quoted(node.as_str()))],
        ),
        Verdict::NodeGone { node, .. } => (
            format!("Bring {node} back, or ask no longer:"),
            vec![format!("bowline peer add {}", quoted(node.as_str())), withdraw(&ticket.id)],
        ),
        Verdict::NodeFull { node, .. } => (
            format!(
                "{node} gets it when one of its volumes is detached, or when it may have more. To see what it has, or to let it have more:"
            ),
            vec![
                "bowline tickets".to_owned(),
                format!("bowline peer add {} --max-volumes NUMBER", quoted(node.as_str())),
            ],
        ),
        Verdict::WaitingForShare => {
            (format!("{here} gets it when the address of the share is published. Nothing to do."), vec![])
        }
        Verdict::VolumeFaulted { .. } => (
            "It goes on when the volume is repaired; until then it stays detached. To see what is wrong:"
                .to_owned(),
            vec![format!("bowline volume show {name}"), "bowline doctor".to_owned()],
        ),
        Verdict::Deleting => (
            "Nobody new is let in to a volume that goes. To ask no longer:".to_owned(),
            vec![withdraw(&ticket.id)],
        ),
    };
    Some(Remedy { sentence, commands })
}

/// "X is withdrawn", with the kinder way where there is one.
fn withdrawn(id: &TicketId, tickets: &[&Ticket], ids: &Shortened<'_>) -> String {
    let shown = ids.shown(id);
    match tickets.iter().find(|ticket| ticket.id == *id) {
        Some(csi) if csi.kind == TicketKind::CsiAttacher => {
            format!("{shown} is withdrawn (which happens by itself when its workload on {} ends)", csi.node)
        }
        _ => format!("{shown} is withdrawn"),
    }
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@' | '/' | '+' | '=');
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What a verdict means, for the page that lists them all: what is so, and what to do.
pub fn meaning(verdict: &Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Satisfied { .. } => (
            "The node can reach the volume: the target has confirmed it, and it is written down.",
            "Nothing.",
        ),
        Verdict::Shared { .. } => {
            ("The volume is used through a server that shares it, and that server is up.", "Nothing.")
        }
        Verdict::Granting { .. } => (
            "The target is being asked to let the node in. Nobody else is in the way.",
            "Wait; it is a matter of moments. If the target does not answer, the verdict changes to say so.",
        ),
        Verdict::WaitingForRelease { .. } => (
            "This ticket is next. The node that had the volume has given it up, and the target is being asked to shut it out.",
            "Wait until the target confirms that.",
        ),
        Verdict::Fencing { .. } => (
            "This ticket is next. The node that had the volume may be alive and writing, so the target must prove that it can no longer reach the volume before anybody else is let in.",
            "Wait. It is never skipped, because two nodes that write destroy the data.",
        ),
        Verdict::StillInUse { .. } => (
            "This ticket is next, but something on the other node still uses the volume: a mount, a device or a process.",
            "End what is named there. Then it goes on by itself.",
        ),
        Verdict::TargetUnreachable { .. } => (
            "The target was asked and did not answer. Nobody knows whether it did what it was asked, so nobody new is let in.",
            "Bring the target back. `bowline doctor` shows what is missing on this machine.",
        ),
        Verdict::TargetRefused { .. } => (
            "The target answered and said no.",
            "Its words are in the verdict; mend the cause at the target. It is asked again by itself.",
        ),
        Verdict::TargetNotCompared { .. } => (
            "Since the start it is not known yet whom the target lets in. Until it is, nobody new is let in.",
            "Wait until the target answers; `bowline doctor` shows what is missing on this machine.",
        ),
        Verdict::HeldElsewhere { .. } => (
            "Another node has the volume and may keep it. Priority alone takes nothing away from a running workload.",
            "End the workload there, or withdraw its ticket (`bowline detach VOLUME --ticket ID`). If that node is dead, declare it out of service (`bowline peer out-of-service NODE`): it is fenced, and then the volume moves on.",
        ),
        Verdict::Outranked { .. } => (
            "Nobody has the volume yet, or it is about to be given, and another ticket goes first: a higher priority, or the same and older.",
            "Wait until that one is withdrawn, or withdraw it.",
        ),
        Verdict::Interrupted { .. } => (
            "This ticket had the volume for work that can be done again (a snapshot, a backup), and a workload needs it.",
            "Nothing; it is its turn again when the workload is done.",
        ),
        Verdict::IncompatibleParameters { .. } => (
            "Another ticket has the volume in a way that this one cannot be beside: one asks to be alone, one reads only, or their access modes do not go together.",
            "Withdraw one of them, or ask for a mode that both can have (`--read-only`, another `--access`).",
        ),
        Verdict::Migrating { .. } => (
            "The volume is moving between two nodes that both have it for a while. There is never a third.",
            "Wait until the move is confirmed (the old node's ticket goes) or rolled back (the new one's goes).",
        ),
        Verdict::MigrationTimedOut { .. } => (
            "The move to this node took longer than the volume allows, so the old node kept it.",
            "Withdraw this ticket and ask again, or end the workload on the old node.",
        ),
        Verdict::NodeNotReady { .. } => (
            "The node does not report. What it has it keeps; new volumes it does not get.",
            "Bring the node back, or ask for another node.",
        ),
        Verdict::NodeOutOfService { .. } => (
            "Somebody declared the node out of service: what it had is taken from it, and it gets nothing new.",
            "When the node is well again: `bowline peer back-in-service NODE`.",
        ),
        Verdict::NodeGone { .. } => (
            "The node was removed.",
            "Make it known again (`bowline peer add NODE`), or withdraw the ticket.",
        ),
        Verdict::NodeFull { .. } => (
            "The node has as many volumes as it can take.",
            "Detach one of them, or raise its limit (`bowline peer add NODE --max-volumes N`).",
        ),
        Verdict::WaitingForShare => (
            "The volume is to be shared, and the server that shares it is not up yet.",
            "Wait; if it lasts, look at that server.",
        ),
        Verdict::VolumeFaulted { .. } => (
            "The volume's data cannot be used. It must be detached everywhere before it can be repaired.",
            "`bowline volume show VOLUME` and `bowline doctor` say what is wrong.",
        ),
        Verdict::Deleting => (
            "Somebody asked to delete the volume. Nobody new is let in.",
            "Withdraw the ticket. A deletion cannot be taken back.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TicketId {
        TicketId::new(text).unwrap()
    }

    #[test]
    fn a_short_id_is_the_beginning_of_one_ticket_only() {
        let digits = "0".repeat(50);
        let a = id(&format!("csi-0123456789abcdef{digits}"));
        let b = id(&format!("csi-0123456789abcdff{digits}"));
        let c = id("bowline-api-worker-2");
        let all = [&a, &b, &c];
        let ids = Shortened(&all);
        assert_eq!(ids.of(&a), "csi-0123456789abcde");
        assert_eq!(ids.shown(&b), "csi-0123456789abcdf…");
        assert_eq!(ids.shown(&c), "bowline-api-worker-2");
        assert_eq!(Shortened(&[&a]).shown(&a), "csi-01234567…");
        for one in all {
            let short = ids.of(one);
            assert_eq!(all.iter().filter(|other| other.as_str().starts_with(short)).count(), 1);
        }
    }

    #[test]
    fn a_name_that_a_shell_would_read_is_quoted() {
        for (word, typed) in [("db-0", "db-0"), ("a b", "'a b'"), ("$(x)", "'$(x)'"), ("a'b", r"'a'\''b'")] {
            assert_eq!(quoted(word), typed);
        }
    }
}
