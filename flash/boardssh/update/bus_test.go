package update

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/godbus/dbus/v5"
)

// recordedPeer is a peer that has sent all its messages.
type recordedPeer struct {
	net.Conn
	io.Reader
	closed atomic.Bool
}

func (s *recordedPeer) Read(p []byte) (int, error) { return s.Reader.Read(p) }

func (s *recordedPeer) Write(p []byte) (int, error) {
	if s.closed.Load() {
		return 0, net.ErrClosed
	}
	return len(p), nil
}

func (s *recordedPeer) Close() error {
	s.closed.Store(true)
	return nil
}

// encodeSignal returns a signal as RAUC sends it.
func encodeSignal(t testing.TB, member string, body ...any) []byte {
	t.Helper()
	m := &dbus.Message{Type: dbus.TypeSignal, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/")),
		dbus.FieldInterface: dbus.MakeVariant(raucInterface),
		dbus.FieldMember:    dbus.MakeVariant(member),
		dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(body...)),
	}}
	var b bytes.Buffer
	if err := m.EncodeTo(&b, binary.LittleEndian); err != nil {
		t.Fatal(err)
	}
	data := b.Bytes()
	binary.LittleEndian.PutUint32(data[8:], 7) // a serial number, which the library sets when it sends
	return data
}

func TestLimitedConn(t *testing.T) {
	message := encodeSignal(t, "Completed", int32(0))
	long := bytes.Clone(message)
	binary.LittleEndian.PutUint32(long[4:], maxMessageBytes+1)
	fields := bytes.Clone(message)
	binary.LittleEndian.PutUint32(fields[12:], maxHeaderBytes+1)
	big := bytes.Clone(message)
	big[0] = 'B'
	for _, tt := range []struct {
		name, data string
		framed     bool
		want       string
	}{
		{"a greeting", "OK 1234\r\n", false, ""},
		{"a greeting without end", strings.Repeat("x", maxGreetingBytes+1), false, errBusLimit.Error()},
		{"messages", string(message) + string(message), true, ""},
		{"a cut message", string(message[:40]), true, ""},
		{"a cut head", string(message[:9]), true, io.ErrUnexpectedEOF.Error()},
		{"a long body", string(long), true, errBusLimit.Error()},
		{"long fields", string(fields), true, errBusLimit.Error()},
		{"the other order of bytes", string(big), true, errBusLimit.Error()},
		{"no message", "HTTP/1.1 400 Bad Request", true, "no message"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &limitedConn{Conn: &recordedPeer{Reader: strings.NewReader(tt.data)}}
			if tt.framed {
				if _, err := g.Write([]byte("BEGIN\r\n")); err != nil {
					t.Fatal(err)
				}
			}
			got, err := io.ReadAll(g)
			if tt.want == "" && (err != nil || string(got) != tt.data) {
				t.Errorf("%q, %v came through; want all of it", got, err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("it ended with %v; want %q", err, tt.want)
			}
		})
	}
}

// A peer that never stops sending reaches the limit.
func TestLimitedConnTotal(t *testing.T) {
	message := encodeSignal(t, "Completed", strings.Repeat("x", 200<<10))
	endless := make([]io.Reader, 0, maxBusBytes/len(message)+2)
	for range cap(endless) {
		endless = append(endless, bytes.NewReader(message))
	}
	g := &limitedConn{Conn: &recordedPeer{Reader: io.MultiReader(endless...)}}
	g.framed.Store(true)
	if n, err := io.Copy(io.Discard, g); !errors.Is(err, errBusLimit) {
		t.Errorf("%d bytes came through, and then %v; want %v", n, err, errBusLimit)
	}
}

func TestBusSignals(t *testing.T) {
	progress := func(percent int32, text string) []any {
		return []any{raucInterface, map[string]dbus.Variant{"Progress": dbus.MakeVariantWithSignature([]any{percent, text, int32(1)}, dbus.ParseSignatureMust("(isi)"))}, []string{}}
	}
	n := &busSignals{changed: make(chan struct{}, 1)}
	for _, s := range []struct {
		name string
		body []any
	}{
		{properties + ".PropertiesChanged", progress(20, "Copying\x1b[2J it\nover")},
		{properties + ".PropertiesChanged", progress(10, "back")},
		{properties + ".PropertiesChanged", progress(200, "over")},
		{properties + ".PropertiesChanged", []any{raucInterface, map[string]dbus.Variant{"Progress": dbus.MakeVariant("half")}, []string{}}},
		{properties + ".PropertiesChanged", nil},
		{properties + ".PropertiesChanged", []any{int32(1), "x"}},
		{raucInterface + ".Completed", []any{"well"}},
		{busInterface + ".NameOwnerChanged", []any{raucName, ":1", ":2"}},
		{"some.other.Thing", []any{int32(1)}},
	} {
		i := strings.LastIndexByte(s.name, '.')
		n.DeliverSignal(s.name[:i], s.name[i+1:], &dbus.Signal{Body: s.body})
	}
	if n.percent != 20 || n.text != "Copying[2J it over" || n.completed || n.gone {
		t.Errorf("the news are %d %% %q, completed %v, gone %v; want 20 %% and nothing else", n.percent, n.text, n.completed, n.gone)
	}
	n.DeliverSignal(raucInterface, "Completed", &dbus.Signal{Body: []any{int32(1)}})
	n.DeliverSignal(busInterface, "NameOwnerChanged", &dbus.Signal{Body: []any{raucName, ":1", ""}})
	if !n.completed || n.result != 1 || !n.gone {
		t.Errorf("completed %v with %d, gone %v", n.completed, n.result, n.gone)
	}
}

// FuzzBus checks that no message of a board causes a panic.
func FuzzBus(f *testing.F) {
	greeting := "REJECTED EXTERNAL\r\nOK 0123456789abcdef0123456789abcdef\r\n"
	f.Add([]byte(greeting), encodeSignal(f, "Completed", int32(1)))
	f.Add([]byte(greeting), encodeSignal(f, "PropertiesChanged", raucInterface, map[string]dbus.Variant{"Progress": dbus.MakeVariant(int32(1))}))
	f.Add([]byte("DATA\r\n"), []byte("l"))
	f.Fuzz(func(t *testing.T, greeting, messages []byte) {
		g := &limitedConn{Conn: &recordedPeer{Reader: io.MultiReader(bytes.NewReader(greeting), bytes.NewReader(messages))}}
		b, err := authenticateBus(g, "0")
		if err == nil {
			b.close()
		}
	})
}
