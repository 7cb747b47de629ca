package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Engine is the JetStream in which hubs keep what they know: that of this process, or another NATS.
type Engine struct {
	jetstream.JetStream
	Replicas int  // servers that keep each record
	Theirs   bool // it is another NATS: streams that are there stay as they are
}

// spaceLag is how long the servers of another NATS may not know of space that was given back.
const spaceLag = 30 * time.Second

// NewStream makes a stream, unless it is there. One that is there keeps its MaxBytes, because whoever
// made it knew the disks of all servers. Its other settings are set, or compared on another NATS.
func NewStream(ctx context.Context, e Engine, c jetstream.StreamConfig) (jetstream.Stream, error) {
	c.Replicas = e.Replicas
	began := time.Now()
	attempt := func(ctx context.Context) (jetstream.Stream, error) { return e.makeStream(ctx, c) }
	s, err := Agree(ctx, attempt)
	for isFull(err) && e.Theirs && time.Since(began) < spaceLag && run.Sleep(ctx, time.Second) == nil {
		s, err = Agree(ctx, attempt)
	}
	if err != nil {
		return nil, fmt.Errorf("make the stream %s: %w", c.Name, err)
	}
	return s, nil
}

// makeStream is one attempt of NewStream.
func (e Engine) makeStream(ctx context.Context, c jetstream.StreamConfig) (jetstream.Stream, error) {
	s, err := e.Stream(ctx, c.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return e.CreateStream(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	have, want := s.CachedInfo().Config, c
	if e.Theirs || have.MaxBytes > 0 || int64(s.CachedInfo().State.Bytes) > c.MaxBytes { // a hub of an earlier release set none
		want.MaxBytes = have.MaxBytes
	}
	other := differs(have, want)
	switch {
	case other == "":
		return s, nil
	case e.Theirs:
		return nil, fmt.Errorf("it is there with other settings, %s\nnext: nats stream info %s  # change or remove it, or give the hub an account of its own", other, c.Name)
	}
	now, err := e.UpdateStream(ctx, want)
	if isFull(err) {
		return s, nil
	}
	return now, err
}

// differs returns the first setting in which a stream is not as it is wanted, or "".
func differs(have, want jetstream.StreamConfig) string {
	if want.Duplicates == 0 {
		have.Duplicates = 0
	}
	a, b := settings(have), settings(want)
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !reflect.DeepEqual(a[name], b[name]) {
			return fmt.Sprintf("%s: %v instead of %v", name, cmp.Or(a[name], any("none")), cmp.Or(b[name], any("none")))
		}
	}
	return ""
}

// settings are those of a stream that are set, by their names in JSON. What the engine or its owner
// chooses is left out.
func settings(c jetstream.StreamConfig) (set map[string]any) {
	c.Description, c.Metadata, c.Placement, c.Compression = "", nil, nil, jetstream.NoCompression
	data, _ := json.Marshal(c) // neither fails
	_ = json.Unmarshal(data, &set)
	maps.DeleteFunc(set, func(_ string, v any) bool { return v == nil || v == -1.0 || v == 0.0 || v == false || v == "" })
	return set
}

// isFull reports whether the engine refuses a stream for which there is no space.
func isFull(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && strings.Contains(api.Description, "insufficient storage")
}

// Hosts returns the HOST:PORT of URLs with commas between them. It shows none, as one may have a password.
func Hosts(urls string) (hosts []string, err error) {
	for i, text := range strings.Split(urls, ",") {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return nil, fmt.Errorf("URL %d is none of NATS\nnext: slipway hub --nats=nats://HOST:4222", i+1)
		}
		hosts = append(hosts, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222")))
	}
	return hosts, nil
}

// ConnectEngine connects to another NATS, and returns an error that is ErrAway if it may answer later.
// creds is a file that is read now and at each new connection, or "". The connection comes back by
// itself. What is written meanwhile fails, and is not sent later.
func ConnectEngine(ctx context.Context, urls, creds string, replicas int) (e Engine, err error) {
	opts := []nats.Option{nats.Name("slipway hub"), nats.ReconnectBufSize(-1)}
	if creds != "" {
		data, err := localfile.Read(creds, 64<<10)
		if err == nil {
			_, err = nkeys.ParseDecoratedUserNKey(data)
		}
		if err != nil {
			return e, fmt.Errorf("read %s: %w", creds, err)
		}
		opts = append(opts, nats.UserCredentials(creds))
	}
	nc, err := dial(ctx, urls, opts...)
	if err == nil {
		if e, err = openEngine(ctx, nc, replicas); err != nil {
			nc.Close()
		}
	}
	var unreached net.Error
	if errors.Is(err, nats.ErrAuthorization) {
		err = fmt.Errorf("%w\nnext: nats account info  # with the same --server and --creds", err)
	}
	if errors.As(err, &unreached) || errors.Is(err, nats.ErrNoServers) || IsUnsure(err) {
		err = away{err}
	}
	return e, err
}

func openEngine(ctx context.Context, nc *nats.Conn, replicas int) (e Engine, err error) {
	if err := checkVersion(nc.ConnectedServerVersion()); err != nil {
		return e, err
	}
	if most := nc.MaxPayload(); most < MaxPayload {
		const next = "\nnext: set max_payload: 8MB in the server's configuration"
		return e, fmt.Errorf("the NATS server takes messages of %s, and a report has up to %s"+next, plaintext.SizeText(most), plaintext.SizeText(MaxPayload))
	}
	e = Engine{Replicas: cmp.Or(replicas, 1), Theirs: true}
	if replicas == 0 && nc.ConnectedClusterName() != "" {
		e.Replicas = 3
	}
	if e.JetStream, err = jetstream.New(nc); err != nil {
		return e, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	_, err = e.AccountInfo(ctx)
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		err = errors.New("this NATS has no JetStream for the hub's account\nnext: nats account info  # JetStream is a setting of its server and of the account")
	}
	return e, err
}

// checkVersion returns an error for a server before 2.11, whose keys have no time to live of their own.
func checkVersion(version string) error {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n == 2 && (major > 2 || major == 2 && minor >= 11) {
		return nil
	}
	return fmt.Errorf("the NATS server is version %s, want 2.11 or later", plaintext.OneLine(version))
}

// Space returns how many bytes another NATS gives for all streams, up to most. It makes a stream of
// that size, and removes it.
func (e Engine) Space(ctx context.Context, most int64) (int64, error) {
	const probe = "SPACE"
	for ; ; most /= 2 {
		_, err := Agree(ctx, func(ctx context.Context) (jetstream.Stream, error) {
			return e.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: probe, Subjects: []string{"space.probe"}, MaxBytes: most, Replicas: e.Replicas})
		})
		if isFull(err) && most > 1<<20 {
			continue
		}
		if err == nil {
			_, err = Agree(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, e.DeleteStream(ctx, probe) })
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) { // the answer of the first attempt was lost
			err = nil
		}
		return most, err
	}
}
