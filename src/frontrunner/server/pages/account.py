"""Pages of who is let in: sign in and out, accept an invitation, one's own account, the users of
the service.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from frontrunner.results.process_identity import acting_for
from frontrunner.server.auth import SESSION_S, USER_NAME, Caller, Role
from frontrunner.server.errors import Forbidden
from frontrunner.server.pages.rendering import own_place, page, sign_in_page
from frontrunner.server.requests import UserBody
from frontrunner.server.service import OPERATOR, CallerOf, Service, ServiceOf, unhurried
from frontrunner.spaces.errors import InvalidInput

router = APIRouter()
TRIES, TRIES_PER_S = 10, 0.2
"""Attempts to sign in that one address may make at once, and after that."""
CONTINUE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>frontrunner</title>
<meta http-equiv="refresh" content="0; url=/"></head>
<body><main><h1>frontrunner</h1><p><a href="/">Continue</a></p></main></body></html>
"""
Code = Annotated[str, Query(max_length=128)]


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; the last value of each."""
    try:
        fields = parse_qs((await request.body()).decode(), max_num_fields=16)
    except ValueError:
        raise InvalidInput("the form cannot be read") from None
    return {name: values[-1].strip() for name, values in fields.items()}


FormOf = Annotated[dict[str, str], Depends(_form)]


def _let_in(service: Service, caller: Caller, response: Response) -> Response:
    """Return the response with a session's cookie."""
    response.set_cookie(
        service.access.cookie,
        service.access.tokens.session(caller),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=service.settings.behind_tls,
    )
    return response


@router.get("/login")
def login(request: Request, service: ServiceOf, code: Code = "") -> Response:
    """Turn a one-time code into a cookie; a page continues, as browsers would not send the cookie
    after a redirect.
    """
    if "code" not in request.query_params:
        return HTMLResponse(sign_in_page(request.scope, place="/"))
    caller = service.links.spend(code)
    if caller is None:
        raise Forbidden(
            "this link was used already, or has expired",
            hint="`frontrunner serve` prints a new one",
        )
    return _let_in(service, caller, HTMLResponse(CONTINUE))


@router.post("/login", dependencies=[Depends(unhurried)])
def sign_in(request: Request, service: ServiceOf, form: FormOf) -> Response:
    """Turn a token into a cookie, and go on to the page that was wanted."""
    caller = service.access.caller_of(token=form.get("token", ""))
    if caller is None:
        text = sign_in_page(
            request.scope, problem="This token is not valid.", place=form.get("place", "/")
        )
        return HTMLResponse(text, status_code=401)
    return _let_in(
        service, caller, RedirectResponse(own_place(form.get("place", "/")), status_code=303)
    )


@router.post("/logout")
def sign_out(request: Request, service: ServiceOf) -> Response:
    """End the session."""
    cookie = request.cookies.get(service.access.cookie)
    if cookie is not None:
        service.access.sign_out(cookie)
    gone = RedirectResponse("/login", status_code=303)
    gone.delete_cookie(
        service.access.cookie, httponly=True, samesite="strict", secure=service.settings.behind_tls
    )
    return gone


@router.get("/join")
def invitation(service: ServiceOf, code: Code = "") -> Response:
    """Ask whoever opens an invitation to accept it: programs that look at links in messages do
    not.
    """
    name = service.access.tokens.invited(code)
    if name is None:
        raise Forbidden(
            "this invitation was used already, or has expired", hint="ask for a new one"
        )
    return page("join.html", here="/login", name=name, code=code)


@router.post("/join", dependencies=[Depends(unhurried)])
def join(request: Request, service: ServiceOf, form: FormOf) -> Response:
    """Accept an invitation: a session, and a token that is shown once."""
    caller, token = service.access.join(form.get("code", ""))
    return _let_in(service, caller, _account(request, service, caller, token=token))


@router.get("/account")
def account(request: Request, service: ServiceOf, caller: CallerOf) -> Response:
    """Who one is here, and, for an operator, who else is let in."""
    return _account(request, service, caller)


@router.post("/account/token")
def renew_token(request: Request, service: ServiceOf, caller: CallerOf) -> Response:
    """Give the user a new token, which is shown once."""
    return _account(request, service, caller, token=service.access.renew_token(caller))


@router.post("/account/users", dependencies=OPERATOR)
def invite(request: Request, service: ServiceOf, caller: CallerOf, form: FormOf) -> Response:
    """Invite a user."""
    body = UserBody.model_validate({key: form[key] for key in ("name", "role") if key in form})
    code = service.access.invite(body.name, body.role)
    link = f"{service.settings.seen_by(request)}/join?code={code}"
    return _account(request, service, caller, invited=body.name, link=link)


@router.post("/account/users/remove", dependencies=OPERATOR)
def remove(request: Request, service: ServiceOf, caller: CallerOf, form: FormOf) -> Response:
    """End a user's access."""
    service.access.remove(form.get("name", ""))
    if form.get("name") == caller.name:
        return RedirectResponse("/login", status_code=303)
    return _account(request, service, caller)


def _account(
    request: Request,
    service: Service,
    caller: Caller,
    *,
    token: str = "",
    invited: str = "",
    link: str = "",
) -> Response:
    """Return the page of an account, with a new token or an invitation if one was made."""
    with acting_for(caller.name):
        return page(
            "account.html",
            here="/account",
            caller=caller,
            users=service.access.tokens.users if caller.role is Role.OPERATOR else {},
            roles=[role.value for role in (Role.OPERATOR, Role.READER)],
            name_pattern=USER_NAME,
            server=service.settings.seen_by(request),
            token=token,
            invited=invited,
            link=link,
        )
