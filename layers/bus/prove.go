package bus

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// User is a user as a JWT says.
type User struct {
	Role, Name string
	Key        string // public
}

// Prove returns the user of a JWT, if this server accepts it now. Only who can sign is the user.
func (s *Server) Prove(token string) (User, error) {
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return User{}, fmt.Errorf("the JWT cannot be read: %w", err)
	}
	s.mu.Lock()
	revoked := slices.Contains(s.revoked, c.Subject)
	s.mu.Unlock()
	switch now := time.Now().Unix(); {
	case revoked:
		return User{}, errors.New("an admin removed the key")
	case now >= c.Expires || now < c.NotBefore:
		return User{}, errors.New("the JWT is over")
	}
	for _, r := range s.opts.Roles {
		if _, signer := s.opts.Keys.role(r.Name); c.Issuer == signer {
			return User{r.Name, Name(c.Name), c.Subject}, nil
		}
	}
	return User{}, errors.New("the JWT is of another hub")
}

// Signed reports whether the user signed a text.
func (u User) Signed(text, signature []byte) bool {
	key, err := nkeys.FromPublicKey(u.Key)
	return err == nil && key.Verify(text, signature) == nil
}
