"""Who belongs to a fleet, as asked of its coordinator: invitations, joining, certificates, tokens."""

from __future__ import annotations

from stoker.wire.asking import DoneView, JobAsk
from stoker.wire.enrolling import (
    CertificateList,
    CertificateView,
    InviteAsk,
    Invited,
    InviteList,
    InviteView,
    Joined,
    JoinFinish,
    LiveCertificates,
    RenewCertificate,
    TokenAsk,
    TokenList,
    TokenMade,
    TokenView,
)
from stoker.wire.speaking import Question, Speaker, part

JOIN_BEGIN = "/v1/join/begin"
"""Asked over a connection that proves nothing yet: `worker.enrolling.joining`, and nobody else."""


class TrustCalls:
    """A part of a `FleetClient`."""

    _speaker: Speaker

    def invite(self, asked: InviteAsk) -> Invited:
        """Invite a machine or a person. Its code is shown this once."""
        return self._speaker.ask(Question(path="/v1/invites", method="POST", body=asked), Invited)

    def invites(self) -> tuple[InviteView, ...]:
        """Give the invitations that still count."""
        return self._speaker.ask(Question(path="/v1/invites"), InviteList).invites

    def withdraw_invite(self, invite: str) -> DoneView:
        """Take an invitation back."""
        return self._speaker.ask(Question(path=f"/v1/invites/{part(invite)}", method="DELETE"), DoneView)

    def finish_join(self, finish: JoinFinish) -> Joined:
        """Prove that we have the code, and get what it is for. Asked again in the same words, the same comes back."""
        question = Question(path="/v1/join/finish", method="POST", body=finish, is_repeatable=True)
        return self._speaker.ask(question, Joined)

    def renew_certificate(self, asked: RenewCertificate) -> Joined:
        """Get this machine's next certificate; the connection shows the present one."""
        question = Question(path="/v1/certificates/renew", method="POST", body=asked, is_repeatable=True)
        return self._speaker.ask(question, Joined)

    def certificates(self) -> tuple[CertificateView, ...]:
        """Give the certificates of machines that have not expired."""
        return self._speaker.ask(Question(path="/v1/certificates"), CertificateList).certificates

    def live_certificates(self) -> tuple[str, ...]:
        """Give the numbers of all certificates that count now."""
        return self._speaker.ask(Question(path="/v1/certificates/live"), LiveCertificates).serials

    def make_token(self, asked: TokenAsk) -> TokenMade:
        """Make a token. It is shown this once."""
        return self._speaker.ask(Question(path="/v1/tokens", method="POST", body=asked), TokenMade)

    def tokens(self) -> tuple[TokenView, ...]:
        """Give all tokens, without their texts: those are not kept."""
        return self._speaker.ask(Question(path="/v1/tokens"), TokenList).tokens

    def revoke_token(self, token: str, *, by: str = "") -> DoneView:
        """End a token at once."""
        question = Question(
            path=f"/v1/tokens/{part(token)}/revoke", method="POST", body=JobAsk(by=by), is_repeatable=True
        )
        return self._speaker.ask(question, DoneView)

    def rotate_token(self, token: str, *, by: str = "") -> TokenMade:
        """Put a new text in a token's place; the old one ends."""
        return self._speaker.ask(
            Question(path=f"/v1/tokens/{part(token)}/rotate", method="POST", body=JobAsk(by=by)), TokenMade
        )
