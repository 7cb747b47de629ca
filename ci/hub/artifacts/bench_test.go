package artifacts

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// BenchmarkBlob puts and gets 500 MiB over HTTP, in one process with the engine.
func BenchmarkBlob(b *testing.B) {
	const size = 500 << 20
	data := random(1, size)
	d := descriptorOf(data)
	b.Run("put", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			b.StopTimer()
			r := startRegistry(b)
			upload := r.begin()
			b.StartTimer()
			r.want("PUT", r.do("operator", "PUT", upload+"?digest="+string(d.Digest), bytes.NewReader(data)), 201)
		}
	})
	b.Run("get", func(b *testing.B) {
		r := startRegistry(b)
		r.put(data)
		b.SetBytes(size)
		for b.Loop() {
			request, err := http.NewRequestWithContext(b.Context(), "GET", r.url+blobPath(d), nil)
			if err != nil {
				b.Fatal(err)
			}
			request.Header.Set("Role", "viewer")
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, response.Body); n != size || err != nil {
				b.Fatalf("%d bytes, %v", n, err)
			}
			response.Body.Close()
		}
	})
}
