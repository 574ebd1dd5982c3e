"""Routes of log-ins: begin and end a session of a web page, make a one-time code, and say who asks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Response

from stoker.coordinator.http.access import PEER, UNKNOWN, Access, Peer, Who, shown_token
from stoker.coordinator.http.http_messages import RouteTable, answer, headers_of
from stoker.coordinator.http.pages import PublicUrl
from stoker.coordinator.http.sessions import CODE_LIFE_S, Sessions, lower_role
from stoker.core.errors import BadInput, Forbidden, NotFound
from stoker.core.leases import Principal
from stoker.protocol.operator_messages import CodeRequest, CodeView, LoginRequest, LoginView

_SESSIONS = "/v1/sessions"
_ANY = CodeRequest()


def _scope(request: Request) -> Any:
    return request.scope


RequestScope = Annotated[Any, Depends(_scope)]


class SessionRoutes:
    """Routes about sessions of web pages."""

    def __init__(self, access: Access, sessions: Sessions | None, public: PublicUrl | None) -> None:
        self._access = access
        self._sessions = sessions
        self._public = public
        self.router = RouteTable("sessions")
        add = self.router.add
        add(_SESSIONS, self.who, response_model=LoginView)
        add(_SESSIONS, self.begin, methods=["POST"], response_model=LoginView)
        add(_SESSIONS, self.end, methods=["DELETE"], response_model=LoginView)
        add(f"{_SESSIONS}/codes", self.make_code, methods=["POST"], response_model=CodeView)

    async def who(self, who: Who, scope: RequestScope) -> Response:
        """Return who the request comes from, and when its session ends; to a page without a session, no role."""
        if not who.is_known:
            return answer(LoginView(role=""))
        session = self._sessions.find(headers_of(scope)) if self._sessions is not None else None
        return answer(_login_view(who, session.expires_s if session is not None else None))

    async def begin(self, asked: LoginRequest, scope: RequestScope) -> Response:
        """Log in a web page. The response sets its cookie."""
        if bool(asked.token) == bool(asked.code):
            raise BadInput("a log-in needs a token or a code")
        peer: Peer = scope.get(PEER, UNKNOWN)
        made = self._access.log_in(headers_of(scope), peer, token=asked.token.strip(), code=asked.code)
        response = answer(_login_view(made.session.login.principal, made.session.expires_s, made.key))
        response.headers["set-cookie"] = made.cookie
        return response

    async def end(self, who: Who, scope: RequestScope) -> Response:
        """Log out: the session of this cookie ends."""
        response = answer(_login_view(who, None))
        if self._sessions is not None:
            response.headers["set-cookie"] = self._sessions.end(headers_of(scope))
        return response

    async def make_code(self, who: Who, scope: RequestScope, asked: CodeRequest = _ANY) -> Response:
        """Make a code that logs in one web page within a minute."""
        if self._sessions is None:
            raise NotFound("this coordinator has no web pages")
        headers, peer = headers_of(scope), scope.get(PEER, UNKNOWN)
        token = shown_token(headers)
        if token is None and not peer.is_own_user:
            # Codes of sessions would make sessions without an end.
            raise Forbidden("a session of a web page makes no codes", hint="use a token: `stoker ui --link`")
        role = lower_role(who.role, asked.role)
        login = self._access.login_of(Principal(name=who.name, role=role), token)
        public = self._public
        url = f"{public.origin}{public.prefix}/" if public is not None else ""
        code = self._sessions.make_code(login)
        return answer(CodeView(code=code, life_s=CODE_LIFE_S, role=role.value, url=url))


def _login_view(who: Principal, expires_s: float | None, key: str = "") -> LoginView:
    return LoginView(user=who.name, role=who.role.value, expires_s=expires_s, key=key)
