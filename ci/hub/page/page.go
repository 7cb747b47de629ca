// Package page is the web page of a hub. Its pages are whole without a script. A script of its own
// replaces the parts that changed.
package page

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/htmlstyle"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

//go:embed *.css page.js *.tmpl
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"newID": job.NewID, "roles": func() []job.Role { return job.Roles },
	"sign": func(class string) string {
		return map[string]string{"passed": "✓", "failed": "✗", "skipped": "–", "cached": "▸"}[class]
	},
}).ParseFS(files, "*.tmpl"))

// Page answers browsers.
type Page struct {
	names     []string // of the hub, in lower case
	authority []byte   // PEM of the hub's certificate authority, for invitations
	follower
}

// New returns the page of a hub that has these host names and addresses. It follows the progress of
// jobs until ctx ends.
func New(ctx context.Context, h *hub.Hub, names []string, authority []byte) (http.Handler, error) {
	p := &Page{authority: authority, follower: follower{ctx: ctx, h: h, changed: h.Changed(ctx), events: map[string][]progress.Event{}}}
	for _, name := range names {
		p.names = append(p.names, strings.ToLower(name))
	}
	if err := h.Progress(ctx, p.note); err != nil {
		return nil, fmt.Errorf("follow the progress of jobs: %w", err)
	}
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, errors.New("another page sent this request\nnext: open the hub's own page"))
	}))
	return p.secure(cross.Handler(p.routes())), nil
}

func (p *Page) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /page.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		own, _ := files.ReadFile("page.css") // embedded
		places, _ := files.ReadFile("places.css")
		fmt.Fprintf(w, "%s\n%s\n%s", htmlstyle.CSS, own, places)
	})
	mux.HandleFunc("GET /page.js", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "page.js") })
	mux.HandleFunc("GET /favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /in", func(w http.ResponseWriter, _ *http.Request) { render(w, http.StatusOK, "in", nil) })
	mux.HandleFunc("POST /in", p.signIn)
	mux.Handle("POST /out", p.known(p.signOut))
	mux.Handle("GET /", p.known(p.show))
	mux.Handle("GET /events", p.known(p.serveEvents))
	mux.Handle("GET /boards/{station}/{name}/report", p.known(framed(p.report)))
	mux.Handle("GET /boards/{station}/{name}/trends", p.known(framed(p.trends)))
	mux.Handle("GET /rollouts/{id}/outcome", p.known(framed(p.outcome)))
	mux.Handle("POST /people", p.known(p.invite))
	for path, f := range forms {
		mux.Handle("POST "+path, p.known(func(w http.ResponseWriter, r *http.Request, who job.Person) error {
			verb, wish, next := f(r, func(name string) string { return strings.TrimSpace(r.PostFormValue(name)) })
			_, err := ask[any](r.Context(), p.h, who, verb, wish)
			if err == nil {
				http.Redirect(w, r, next, http.StatusSeeOther)
			}
			return err
		}))
	}
	return mux
}

const (
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'"
	// reportPolicy shows a report, whose text comes from boards, as a page of nobody.
	reportPolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'none'; form-action 'none'; frame-ancestors 'self'; base-uri 'none'; sandbox"
	maxFormBytes = 64 << 10
)

// secure refuses names that are not the hub's, which another's DNS can lead here, and sets what
// browsers allow the pages.
func (p *Page) secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for key, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
			"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
		} {
			w.Header().Set(key, value)
		}
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if !slices.Contains(p.names, strings.ToLower(host)) {
			fail(w, http.StatusMisdirectedRequest, fmt.Errorf("this hub is not called %q\nnext: open https://%s", plaintext.ShortLine(host), p.h.Place.Page))
			return
		}
		if r.Method == http.MethodPost { // the others have no body; a stream of events has no end
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience)) // else its size is the limit
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
		next.ServeHTTP(w, r)
	})
}

const cookieName = "__Host-slipway"

// handler answers a person who signed in.
type handler func(w http.ResponseWriter, r *http.Request, who job.Person) error

// known calls a handler for who has a cookie.
func (p *Page) known(answer handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var who job.Person
		err := hub.ErrSignedOut
		if c, none := r.Cookie(cookieName); none == nil {
			who, err = p.h.SignedIn(r.Context(), c.Value)
		}
		if err != nil && !errors.Is(err, hub.ErrSignedOut) {
			fail(w, http.StatusServiceUnavailable, err)
			return
		}
		if err == nil {
			err = answer(w, r, who)
		}
		if err != nil {
			fail(w, p.statusOf(err), err)
		}
	})
}

var (
	errRole    = errors.New("your role does not allow this")
	errUnknown = errors.New("the hub knows no such page, board, station or job")
)

// isAway reports whether the hub may do later what failed now.
func (p *Page) isAway(err error) bool { return bus.IsUnsure(err) || !p.h.Majority() }

func (p *Page) statusOf(err error) int {
	switch {
	case errors.Is(err, hub.ErrSignedOut):
		return http.StatusUnauthorized
	case errors.Is(err, errRole):
		return http.StatusForbidden
	case errors.Is(err, errUnknown):
		return http.StatusNotFound
	case errors.Is(err, bus.ErrConflict):
		return http.StatusConflict
	case p.isAway(err):
		return http.StatusServiceUnavailable
	}
	return http.StatusUnprocessableEntity
}

// fail writes the page of an error, with the next step.
func fail(w http.ResponseWriter, status int, err error) {
	text, next, _ := strings.Cut(plaintext.Printable(err.Error()), "\nnext: ")
	render(w, status, "fail", map[string]string{"Title": http.StatusText(status), "Text": text, "Next": next})
}

func render(w http.ResponseWriter, status int, name string, data any) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		http.Error(w, "make the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // or the reader is gone
}

// signIn makes a cookie of a secret that "slipway hub open" printed.
func (p *Page) signIn(w http.ResponseWriter, r *http.Request) {
	cookie, err := p.h.SignIn(r.Context(), strings.TrimSpace(r.PostFormValue("secret")))
	if err != nil {
		fail(w, p.statusOf(err), err)
		return
	}
	setCookie(w, cookie, int(hub.SessionTTL.Seconds()))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func setCookie(w http.ResponseWriter, value string, maxAgeSec int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: value, Path: "/", MaxAge: maxAgeSec, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

func (p *Page) signOut(w http.ResponseWriter, r *http.Request, _ job.Person) error {
	c, err := r.Cookie(cookieName)
	if err == nil {
		err = p.h.SignOut(r.Context(), c.Value)
	}
	setCookie(w, "", -1)
	if err == nil {
		http.Redirect(w, r, "/in", http.StatusSeeOther)
	}
	return err
}

// ask calls the hub as a person, as a request by NATS would.
func ask[Out any](ctx context.Context, h *hub.Hub, who job.Person, verb string, in any) (out Out, err error) {
	request, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	role, may := who.Role, who.Role.May(verb)
	if may {
		role = job.RoleOf(verb)
	}
	answer, err := h.Call(ctx, role, who.Name, verb, request)
	switch {
	case err != nil && !may:
		return out, errors.Join(err, errRole)
	case err != nil:
		return out, err
	}
	return answer.(Out), nil
}

// forms are what people do on pages, by path: what the hub is asked for, and the page after it.
var forms = map[string]func(r *http.Request, field func(string) string) (verb string, wish any, next string){
	"/boards/{station}/{name}": func(r *http.Request, field func(string) string) (string, any, string) {
		count, err := strconv.Atoi(cmp.Or(field("count"), "0"))
		if err != nil {
			count = -1 // which no job has
		}
		steps := []job.Step{{Do: job.Do(field("do")), Bundle: field("bundle"), Token: field("token"), Count: count}}
		for _, do := range r.PostForm["then"] {
			steps = append(steps, job.Step{Do: job.Do(do)})
		}
		j := job.Job{ID: cmp.Or(field("id"), job.NewID()), Station: r.PathValue("station"), Name: r.PathValue("name"), Board: field("board"), Artifact: field("artifact"), Steps: steps}
		j.LimitMS, j.StartWithinMS = job.Times(steps)
		return job.VerbJobAdd, j, "/jobs/" + j.ID
	},
	"/stations/{station}": func(r *http.Request, field func(string) string) (string, any, string) {
		station := r.PathValue("station")
		return job.VerbDrain, job.Drain{Station: station, Back: field("back") != ""}, "/stations/" + station
	},
	"/boards/{station}/{name}/name": func(r *http.Request, field func(string) string) (string, any, string) {
		wish := job.NameDevice{Station: r.PathValue("station"), Device: r.PathValue("name"), Name: field("name"), Board: field("board")}
		return job.VerbNameDevice, wish, "/stations/" + wish.Station
	},
	"/jobs/{id}": func(r *http.Request, field func(string) string) (string, any, string) {
		wish := job.StopWish{ID: r.PathValue("id"), How: job.Stop(field("how")), Station: field("station")}
		return plaintext.Either(wish.Station == "", job.VerbJobStop, job.VerbAbandon), wish, "/jobs/" + wish.ID
	},
	"/rollouts/{id}": func(r *http.Request, field func(string) string) (string, any, string) {
		id := r.PathValue("id")
		if field("back") == "" {
			return job.VerbRolloutWish, job.RolloutWish{ID: id, Wish: job.Wish(field("wish"))}, "/rollouts/" + id
		}
		back := job.RolloutBack{ID: id, New: cmp.Or(field("new"), job.NewID())}
		return job.VerbRolloutBack, back, "/rollouts/" + back.New
	},
	"/people/remove": func(_ *http.Request, field func(string) string) (string, any, string) {
		return job.VerbRemove, job.Person{Name: field("name")}, "/people"
	},
}

// invite shows the line that the invited person or station types. It is not kept anywhere.
func (p *Page) invite(w http.ResponseWriter, r *http.Request, who job.Person) error {
	person := job.Person{Name: strings.TrimSpace(r.PostFormValue("name")), Role: job.Role(r.PostFormValue("role"))}
	i, err := ask[job.Invitation](r.Context(), p.h, who, job.VerbInvite, person)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("slipway join %s %s", r.Host, access.Token(i.Secret, p.authority))
	return p.write(w, r, who, line)
}

// show writes a page as it is now.
func (p *Page) show(w http.ResponseWriter, r *http.Request, who job.Person) error {
	return p.write(w, r, who, "")
}

// write writes the page of an address. said is what the last form was answered.
func (p *Page) write(w http.ResponseWriter, r *http.Request, who job.Person, said string) error {
	s, err := p.look(0)
	if err != nil {
		return err
	}
	v, err := p.newView(r.Context(), s, who, r.URL, false)
	if err != nil {
		return err
	}
	v.Said = said
	parts, err := v.draw()
	if err == nil {
		render(w, http.StatusOK, "page", struct {
			*view
			Parts []part // the head first
		}{v, parts})
	}
	return err
}

// find returns the kind of a page, and the names in its path.
func find(path string) (name string, args []string) {
	first, rest, more := strings.Cut(strings.Trim(path, "/"), "/")
	if more {
		args = strings.Split(rest, "/")
	}
	return first + strings.Repeat("/*", len(args)), args
}
