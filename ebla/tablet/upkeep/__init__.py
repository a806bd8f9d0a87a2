"""What a store does by itself to stay quick and small: merging fragments, as far as nobody reads their past."""
